"""The tasks of the Long Range Arena, prepared once and read from disk; no JAX in here."""

import difflib
from collections.abc import Mapping

from lra.data import listops
from lra.data.task import DataConfig, Padding, PairSplit, Sequences, Split, Task, TaskInfo

__all__ = [
    "TASKS",
    "DataConfig",
    "Padding",
    "PairSplit",
    "Sequences",
    "Split",
    "Task",
    "TaskInfo",
    "describe",
    "load",
]

TASKS: Mapping[str, TaskInfo] = {
    "listops": TaskInfo(len(listops.VOCAB), listops.NUM_CLASSES, listops.load, paper_steps=5_000),
    "listops-short": TaskInfo(len(listops.VOCAB), listops.NUM_CLASSES, listops.load_short),
}


def describe(task: str) -> TaskInfo:
    """What is known of the task called `task`, before its data are there."""
    if task not in TASKS:
        nearest = difflib.get_close_matches(task, TASKS, cutoff=0.5) or sorted(TASKS)
        raise ValueError(f"There is no task called {task!r}. Did you mean {' or '.join(nearest)}?")
    return TASKS[task]


def load(config: DataConfig) -> Task:
    """Opens the task that `config` names, preparing its data first where they are not there yet."""
    task = describe(config.task).load(config)
    return task.first(config.examples) if config.examples else task
