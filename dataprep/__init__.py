"""Data preparation: cache, archives, held-out splits, worker processes. No module here imports jax."""
