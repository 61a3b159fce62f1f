"""Fine-tuning tasks: encoded examples, predictions, metrics and files of predictions. Imports no jax."""
