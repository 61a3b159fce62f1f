"""Prepared data of a fine-tuning task."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from language.tasks.examples import EncodedSplit
from language.tasks.task import Task


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Prepared data of a task."""

    task: Task
    splits: Mapping[str, EncodedSplit]  # "train", "valid", and others
    sha256: str  # hash of all prepared files, equal for equal examples
    folder: Path
    is_sample: bool = False  # True if the training split is a sample of a larger file
