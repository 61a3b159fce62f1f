"""Tasks of the Long Range Arena, prepared once and read from disk. No module here imports jax."""

import logging
from collections.abc import Mapping

from lra.data import image, listops, mqar, pathfinder, retrieval, text
from lra.data.task import DataConfig, Padding, Sequences, Split, Task, TaskInfo
from nystromformer_jax.support.plugins import is_plugin, load_plugin
from nystromformer_jax.support.spelling import nearest

__all__ = [
    "TASKS",
    "DataConfig",
    "Padding",
    "Sequences",
    "Split",
    "Task",
    "TaskInfo",
    "check_task",
    "describe",
    "load",
]

_logger = logging.getLogger(__name__)

TASKS: Mapping[str, TaskInfo] = {
    "listops": listops.INFO,
    "listops-short": listops.SHORT_INFO,
    "text": text.INFO,
    "retrieval": retrieval.INFO,
    "image": image.INFO,
    **pathfinder.INFOS,
}


def check_task(task: str) -> None:
    """Raises ValueError unless `task` is in `TASKS` or is `mqar-LENGTH-PAIRS` or `module:name`.

    The module is not imported.
    """
    if task not in TASKS and not is_plugin(task) and not mqar.size_of(task):
        raise ValueError(f"Unknown task {task!r}{nearest(task, TASKS)}")


def describe(task: str) -> TaskInfo:
    """Returns the properties of a task; needs no data.

    Args:
      task: A name in `TASKS`, `mqar-LENGTH-PAIRS`, or `module:name` of a `TaskInfo` of another
        package.

    Raises:
      ValueError: The task is unknown, or MQAR has too many pairs.
      ImportError: The module or the object does not exist, or the module raised an error.
    """
    if is_plugin(task):
        info: TaskInfo = load_plugin(task, TaskInfo, "an lra.data.TaskInfo")
        return info
    if size := mqar.size_of(task):
        return mqar.describe(*size)
    check_task(task)
    return TASKS[task]


def load(config: DataConfig) -> Task:
    """Opens the task of a config; prepares the data if they are missing.

    Raises:
      Any exception of `TaskInfo.load`.
    """
    info = describe(config.task)
    task = info.load(config)
    if not info.has_all(task) and not config.examples:
        _logger.warning(
            "%s has %s examples here and %s in the benchmark: accuracies are not comparable.",
            task.name,
            " / ".join(f"{len(split):,}" for split in task.splits.values()),
            " / ".join(f"{size:,}" for size in info.sizes.values()),
        )
    return task.first(config.examples) if config.examples else task
