"""Sweeps, many runs of the benchmark: job file, local queue, cluster, status. No module here imports jax."""
