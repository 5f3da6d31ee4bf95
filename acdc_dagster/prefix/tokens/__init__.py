"""From text to the model's token ids."""
