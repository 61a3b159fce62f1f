"""Results of pretraining and fine-tuning beside each other and the paper's; no jax in here."""
