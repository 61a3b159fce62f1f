"""Pallas TPU kernels for Nyström attention; each pass reads the tokens once."""
