"""Config files of the `run_*.py` programs."""
