"""Report of the benchmark's runs: `python -m lra.report`, and tables for other pages."""

from lra.report.groups import read_groups
from lra.report.tables import table3, task_table

__all__ = ["read_groups", "table3", "task_table"]
