"""Time and memory of attention by length: `python -m benchmarks.efficiency`."""
