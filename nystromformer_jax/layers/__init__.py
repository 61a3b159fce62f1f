"""Flax Modules: attention layers, encoder blocks, and their parts."""
