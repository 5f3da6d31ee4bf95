"""From a request's body to the prompt's text, as the model's chat template writes it."""
