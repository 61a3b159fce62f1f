"""Timings compared with other implementations: `python -m benchmarks`. Needs the extras `lra` and `peers`."""
