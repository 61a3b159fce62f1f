"""Time and memory of attention by length: `python -m lra.efficiency`."""
