"""Runs in words: a result in a sentence, and the tables that README shows."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.statistics import binomial_error, t_interval
from lra.report import tables
from lra.report.groups import Group, group_runs, tasks_of
from lra.report.results import find_runs, read_run


def sentence(result: Mapping[str, Any]) -> str:
    """One result, for people."""
    error = binomial_error(result["test_accuracy"], result["test_examples"])
    return (
        f"{result['task']} with {result['attention']} attention: test accuracy"
        f" {100 * result['test_accuracy']:.2f} ± {100 * error:.2f} % on {result['test_examples']:,}"
        f" examples; validation {100 * result['valid_accuracy']:.2f} % at its best step,"
        f" {result['best_step']:,}."
    )


def sentence_over_seeds(results: Sequence[Mapping[str, Any]]) -> str:
    """Several seeds of one config, for people."""
    accuracies = [100 * result["test_accuracy"] for result in results]
    mean, half_width = t_interval(accuracies)
    return (
        f"{results[0]['task']} with {results[0]['attention']} attention, {len(results)} seeds: test"
        f" accuracy {mean:.2f} %, standard deviation {statistics.stdev(accuracies):.2f}, 95 %"
        f" t-interval ± {half_width:.2f} ({', '.join(f'{value:.2f}' for value in accuracies)})."
    )


def read_groups(folders: Iterable[Path]) -> tuple[list[Group], list[str]]:
    """The groups of all runs at or below `folders`, and a sentence for each run that was left out.

    Raises:
      FileNotFoundError: A folder is not there, or holds no run.
      ValueError: A run's file cannot be understood.
    """
    return group_runs([read_run(folder) for folder in find_runs(folders)])


def table3(groups: Sequence[Group]) -> str:
    """The paper's Table 3 in Markdown: ours, the paper's, reruns, and the official board."""
    return tables.benchmark_table(groups).markdown()


def task_table(groups: Sequence[Group], task: str, *columns: str) -> str:
    """One task's settings in Markdown, a row each, over what trivial predictors score.

    Args:
      groups: From `read_groups`.
      task: Whose.
      *columns: Which columns; none: all.

    Raises:
      ValueError: No group is of the task.
    """
    own = [group for group in groups if group.task == task]
    if not own:
        known = ", ".join(tasks_of(groups)) or "none"
        raise ValueError(f"there is no run of {task!r}; there are runs of {known}.")
    table = tables.task_groups_table(own)
    return (table.take(*columns) if columns else table).markdown()
