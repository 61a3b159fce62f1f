"""Data preparation: cache, archives, splits, atomic files. No module here imports jax."""
