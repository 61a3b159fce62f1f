"""Prepares one's own files for fine-tuning; the prepared data are cached."""

import dataclasses
import itertools
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from dataprep import cache
from dataprep.archives import stamp
from dataprep.holdout import held_out_share
from language.files import conll, rows, squad
from language.files.config import FilesConfig
from language.tasks.answering import AnsweringTask
from language.tasks.data import TaskData
from language.tasks.examples import EncodedSplit, sample
from language.tasks.task import Kind, Task
from language.tokenizer import Tokenizer

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 7

NOTES = "notes.json"
# Fields of the section "data" on which the stored data depend.
STORED = ("kind", "text", "text_pair", "label", "separator", "labels")

_logger = logging.getLogger(__name__)


class FileFormat(Protocol):
    """The functions of a module that reads one format of files."""

    def read(self, path: Path, config: FilesConfig, *, labeled: bool | None) -> list[Any]:
        """Returns the records of a file."""

    def labels_of(self, records: Sequence[Any], config: FilesConfig) -> list[str]:
        """Returns the different labels in order."""

    def content(self, record: Any) -> bytes:
        """Returns bytes that are the same for equal records, to keep them in the same split."""

    def make_task(self, config: FilesConfig, labels: Sequence[str]) -> Task:
        """Returns the task."""

    def save(
        self,
        folder: Path,
        split: str,
        records: Sequence[Any],
        labels: Sequence[str],
        config: FilesConfig,
        tokenizer: Tokenizer,
    ) -> None:
        """Tokenizes and writes a split."""

    def open_split(
        self,
        folder: Path,
        split: str,
        labels: Sequence[str],
        config: FilesConfig,
        tokenizer: Tokenizer,
    ) -> EncodedSplit:
        """Opens a split that `save` wrote."""


FORMATS: Mapping[Kind, FileFormat] = {
    "classification": rows,
    "regression": rows,
    "multi_label": rows,
    "token_classification": conll,
    "question_answering": squad,
}


def load(config: FilesConfig, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of `config`; reads and tokenizes the files on first use.

    Raises:
      FileNotFoundError: A file is missing.
      ValueError: A file or an example is invalid.
      OSError: A file cannot be read, or the cache cannot be written.
    """
    file_format, files = FORMATS[config.kind], config.files
    holds_out = "valid" not in files
    fingerprint = {
        "format": FORMAT,
        "files": {
            split: [str(path.absolute()), stamp({"": path})] for split, path in files.items()
        },
        **{name: getattr(config, name) for name in STORED},
        "held_out": [config.valid_share, config.seed] if holds_out else None,
        "tokenizer": tokenizer.sha256,
    }

    def build(folder: Path) -> None:
        records = {
            split: file_format.read(path, config, labeled=None if split == "test" else True)
            for split, path in files.items()
        }
        labels = config.known_labels or file_format.labels_of(records["train"], config)
        _require_labels(config, labels, files["train"])
        make_task(config, labels)  # validates data.metric
        if holds_out:
            records = _hold_out(file_format, config, records, files["train"])
        for split, found in records.items():
            file_format.save(folder, split, found, labels, config, tokenizer)
        unanswerable = any(getattr(record, "answers", None) == [] for record in records["train"])
        notes = {"splits": list(records), "labels": labels, "has_unanswerable": unanswerable}
        (folder / NOTES).write_text(json.dumps(notes, indent=2) + "\n", encoding="utf-8")

    described = ", ".join(map(str, files.values()))
    prepared = cache.prepared(config.kind, fingerprint, build, f"{config.kind} from {described}")
    notes = json.loads((prepared.folder / NOTES).read_text(encoding="utf-8"))
    splits = {
        split: file_format.open_split(prepared.folder, split, notes["labels"], config, tokenizer)
        for split in sorted(notes["splits"], key=("train", "valid", "test").index)
    }
    task = make_task(config, notes["labels"], notes["has_unanswerable"])
    is_sample = 0 < config.examples < len(splits["train"])
    if is_sample:
        indices = sample(splits["train"], config.examples, config.seed)
        splits["train"] = splits["train"].take(indices)
    _logger.info(
        "%s: %s; labels: %s.",
        config.kind,
        ", ".join(f"{split} {len(found):,} rows" for split, found in splits.items()),
        ", ".join(notes["labels"]) or "none",
    )
    return TaskData(task, splits, prepared.sha256, prepared.folder, is_sample)


def open_input(
    config: FilesConfig, task: Task, path: Path, tokenizer: Tokenizer, folder: Path
) -> EncodedSplit:
    """Returns the examples of a file without their labels, for predictions; `folder` is for its arrays."""
    file_format = FORMATS[config.kind]
    if not path.is_file():
        raise FileNotFoundError(
            f"--input: {path} is not a file; pass a file with the examples to predict, in the format of the"
            " training file."
        )
    records = file_format.read(path, config, labeled=False)
    file_format.save(folder, "input", records, task.labels, config, tokenizer)
    return file_format.open_split(folder, "input", task.labels, config, tokenizer)


def make_task(config: FilesConfig, labels: Sequence[str], has_unanswerable: bool = False) -> Task:
    """Returns the task with these labels; `has_unanswerable` is for question answering.

    Raises:
      ValueError: `data.metric` is not a metric for these labels.
    """
    task = FORMATS[config.kind].make_task(config, labels)
    if isinstance(task, AnsweringTask):
        task = dataclasses.replace(task, has_unanswerable=has_unanswerable)
    if config.metric and config.metric not in task.metrics:
        raise ValueError(
            f"data.metric={config.metric!r} does not suit the labels {', '.join(labels)}: choose"
            f" {' or '.join(task.metrics)}."
        )
    metrics = sorted(task.metrics, key=lambda metric: metric != config.metric)
    return dataclasses.replace(task, metrics=tuple(metrics))


def _require_labels(config: FilesConfig, labels: Sequence[str], path: Path) -> None:
    """Raises ValueError if a task with labels has fewer than two."""
    if config.kind in ("regression", "question_answering") or len(labels) >= 2:
        return
    column = ", or set --config.data.label to another column"
    raise ValueError(
        f"{path} has {f'only the label {labels[0]!r}' if labels else 'no labels'}, and {config.kind} needs"
        f" two or more: add examples with other labels"
        f"{'' if config.kind == 'token_classification' else column}."
    )


def _hold_out(
    file_format: FileFormat, config: FilesConfig, records: Mapping[str, list[Any]], path: Path
) -> dict[str, list[Any]]:
    """Returns the records with a validation split, taken from the training split."""
    examples = records["train"]
    try:
        is_valid = held_out_share(
            map(file_format.content, examples), config.valid_share, config.seed
        )
    except ValueError as error:
        raise ValueError(
            f"{path}: a validation set is held out of it, which {error} Add examples, or set"
            " --config.data.valid_file."
        ) from None
    return {
        **records,
        "train": list(itertools.compress(examples, ~is_valid)),
        "valid": list(itertools.compress(examples, is_valid)),
    }
