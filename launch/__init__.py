"""Launching: huge pages, several hosts, and many runs as jobs. No module here imports jax."""
