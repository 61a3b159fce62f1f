"""Report of the benchmark's runs: `python -m lra.report`, and its tables for other pages."""
