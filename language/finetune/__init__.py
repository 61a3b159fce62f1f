"""Fine-tuning: files of every kind give `Example`s. Only `heads`, `run` and `trainer` import jax."""
