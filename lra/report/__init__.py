"""Report of the benchmark's runs: `python -m lra.report`, and sentences and tables for other pages."""

from lra.report.groups import read_groups
from lra.report.page import sentence, sentence_over_seeds
from lra.report.tables import table3, task_table

__all__ = ["read_groups", "sentence", "sentence_over_seeds", "table3", "task_table"]
