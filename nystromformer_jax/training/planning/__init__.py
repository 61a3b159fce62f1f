"""Estimates memory, communication and time of a training step by ahead-of-time compilation."""
