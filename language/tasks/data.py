"""Prepared data of a fine-tuning task, which are cached."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dataprep import cache
from language.tasks.examples import DataConfig, Example, Split, sample
from language.tasks.task import Task
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json

NOTES = "notes.json"


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Prepared data of a task."""

    task: Task
    splits: Mapping[str, Split]  # "train", "valid", and others
    sha256: str  # hash of all prepared files, equal for equal examples
    folder: Path
    counts: Mapping[str, int]  # rows of each split, before a sample is taken

    @property
    def is_sample(self) -> bool:
        """True if the training split is a sample of the training examples."""
        return len(self.splits["train"]) < self.counts["train"]


def prepare(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    name: str,
    fingerprint: Mapping[str, Any],
    description: str,
    read: Callable[[], tuple[Mapping[str, Sequence[Example]], Mapping[str, Any]]],
    describe: Callable[[Mapping[str, Any]], tuple[Task, Sequence[str]]],
) -> TaskData:
    """Returns the prepared data of a task; reads and tokenizes its files on first use.

    Args:
      config: The section "data" of a config.
      tokenizer: The tokenizer.
      name: Beginning of the name of the folder.
      fingerprint: Everything that the data depend on, besides the tokenizer.
      description: Logged when the files are read.
      read: Returns the examples of each split, and notes as a JSON object.
      describe: Returns the task and the names of its splits, given the notes.

    Raises:
      ValueError: An example or label is invalid.
      OSError: A file cannot be read, or the cache cannot be written.
    """

    def build(folder: Path) -> None:
        splits, notes = read()
        task, _ = describe(notes)
        for split, examples in splits.items():
            task.encode(folder, split, examples, tokenizer)
        write_json(folder / NOTES, notes)

    fingerprint = {**fingerprint, "tokenizer": tokenizer.sha256}
    prepared = cache.prepared(name, fingerprint, build, description)
    task, names = describe(read_json(prepared.folder / NOTES))
    splits = {split: task.open(prepared.folder, split, tokenizer, config) for split in names}
    counts = {name: len(split) for name, split in splits.items()}
    if 0 < config.examples < counts["train"]:
        rows = sample(splits["train"], config.examples, config.seed)
        splits["train"] = splits["train"].take(rows)
    return TaskData(task, splits, prepared.sha256, prepared.folder, counts)
