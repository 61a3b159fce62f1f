"""Data preparation: cache, archives, splits, atomic files. Nothing here imports jax."""
