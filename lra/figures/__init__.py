"""Figures of the attention of trained models: `python -m lra.figures RUN`."""
