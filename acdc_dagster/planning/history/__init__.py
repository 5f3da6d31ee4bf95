"""What earlier runs measured, and what follows from it for a prediction."""
