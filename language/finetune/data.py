"""Prepared data of a fine-tuning task, which are cached."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep import cache
from language.finetune.examples import Split, sample
from language.finetune.task import DataConfig, Task
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import read_json, write_json

NOTES = "notes.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Prepared data of a task."""

    task: Task
    tokenizer: Tokenizer
    splits: Mapping[str, Split]  # "train", "valid", and others
    sha256: str  # hash of all prepared files, equal for equal examples
    folder: Path
    counts: Mapping[str, int]  # rows of each split, before a sample is taken

    @property
    def is_sample(self) -> bool:
        """True if the training split is a sample of the training examples."""
        return len(self.splits["train"]) < self.counts["train"]


def load(config: DataConfig, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of a task; reads and tokenizes its files on first use.

    Raises:
      FileNotFoundError: A file is missing.
      ValueError: An example or label is invalid.
      OSError: A file cannot be read, or the cache cannot be written.
    """
    source = config.source()

    def make_task(notes: Mapping[str, Any]) -> Task:
        return config.make_task(notes.get("labels", ()), notes.get("has_unanswerable", False))

    def build(folder: Path) -> None:
        splits, notes = source.read()
        task = make_task(notes)
        for split, examples in splits.items():
            task.encode(folder, split, examples, tokenizer)
        write_json(folder / NOTES, notes)

    fingerprint = {**source.fingerprint, "tokenizer": tokenizer.sha256}
    prepared = cache.prepared(source.name, fingerprint, build, source.description)
    notes = read_json(prepared.folder / NOTES)
    task = make_task(notes)
    names = notes["splits"] if "splits" in notes else notes["different"]
    names = sorted(names, key=lambda name: (name != "train", name != "valid"))
    splits = {name: task.open(prepared.folder, name, tokenizer, config) for name in names}
    counts = {name: len(split) for name, split in splits.items()}
    if 0 < config.examples < counts["train"]:
        rows = sample(splits["train"], config.examples, config.seed)
        splits["train"] = splits["train"].take(rows)
    _log(task, splits, counts)
    return TaskData(task, tokenizer, splits, prepared.sha256, prepared.folder, counts)


def _log(task: Task, splits: Mapping[str, Split], counts: Mapping[str, int]) -> None:
    """Logs the sizes of the splits, with a warning if a benchmark is not complete."""
    rows = ", ".join(f"{name} {len(split):,} rows" for name, split in splits.items())
    labels = () if task.kind == "question_answering" else task.labels
    _logger.info("%s: %s; labels: %s.", task.name, rows, ", ".join(labels) or "none")
    small = [
        f"{count:,} instead of {task.sizes[split]:,} examples for {split}"
        for split, count in counts.items()
        if split in task.sizes and not task.has_all(split, count)
    ]
    if small:
        _logger.warning(
            "%s has %s: scores are not comparable with published ones.",
            task.title,
            ", ".join(small),
        )
