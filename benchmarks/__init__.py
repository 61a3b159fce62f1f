"""Timings beside the peers, in one process: `python -m benchmarks`. Needs the extras `lra`, `peers`."""
