"""The tasks of the Long Range Arena, prepared once and read from disk; no JAX in here."""

import difflib
import functools
from collections.abc import Mapping

from lra.data import image, listops, pathfinder, retrieval, text
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
    "text": TaskInfo(
        text.VOCAB_SIZE,
        len(text.CLASS_NAMES),
        text.load,
        paper_steps=20_000,
        official_sha256=text.OFFICIAL_SHA256,
    ),
    "retrieval": TaskInfo(
        retrieval.VOCAB_SIZE,
        len(retrieval.CLASS_NAMES),
        retrieval.load,
        pairs=True,
        paper_steps=30_000,
    ),
    "image": TaskInfo(
        image.VOCAB_SIZE,
        len(image.CLASS_NAMES),
        image.load,
        paper_steps=35_000,
        official_sha256=image.OFFICIAL_SHA256,
    ),
    **{
        pathfinder.task_name(resolution, difficulty): TaskInfo(
            pathfinder.VOCAB_SIZE,
            len(pathfinder.CLASS_NAMES),
            functools.partial(pathfinder.load, resolution=resolution, difficulty=difficulty),
            paper_steps=62_400 if (resolution, difficulty) == (32, "hard") else 0,
        )
        for resolution in pathfinder.RESOLUTIONS
        for difficulty in pathfinder.RELEASE_FOLDERS
    },
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
