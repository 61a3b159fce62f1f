"""Pictures of what a trained model's attention does: `python -m lra.figures RUN`."""
