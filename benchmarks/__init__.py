"""Timings beside other implementations: `python -m benchmarks`. Needs the extras `lra` and `peers`."""
