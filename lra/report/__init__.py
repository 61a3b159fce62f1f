"""What runs add up to: `python -m lra.report`, and the sentences and tables that others print."""

from lra.report.text import read_groups, sentence, sentence_over_seeds, table3, task_table

__all__ = ["read_groups", "sentence", "sentence_over_seeds", "table3", "task_table"]
