"""Tasks of fine-tuning: encoded examples, predictions, metrics and files of predictions. Imports no jax."""
