"""What a model weighs and keeps for each token."""
