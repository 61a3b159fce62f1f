"""Prepares one's own files for fine-tuning; the prepared data are cached."""

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from dataprep.archives import stamp
from dataprep.holdout import held_out_share
from language.files import conll, rows, squad
from language.files.config import FilesConfig
from language.tasks.answering import AnsweringTask
from language.tasks.data import TaskData, prepare
from language.tasks.examples import Example, Split
from language.tasks.sequences import SequenceTask
from language.tasks.tagging import TaggingTask
from language.tasks.task import METRICS, Kind, Task
from language.tokenizer import Tokenizer

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 7

# Fields of the section "data" on which the stored data depend.
STORED = ("kind", "text", "text_pair", "label", "separator", "labels")
# Functions that read a file as examples: `(path, config, *, labeled)`.
READERS: Mapping[Kind, Callable[..., list[Example]]] = {
    "classification": rows.read,
    "regression": rows.read,
    "multi_label": rows.read,
    "token_classification": conll.read,
    "question_answering": squad.read,
}

_logger = logging.getLogger(__name__)


def load(config: FilesConfig, tokenizer: Tokenizer) -> TaskData:
    """Returns the prepared data of `config`; see `language.tasks.data.prepare`.

    Raises:
      FileNotFoundError: A file is missing.
    """
    files = config.files
    holds_out = "valid" not in files

    def read() -> tuple[dict[str, list[Example]], dict[str, Any]]:
        splits = {
            split: READERS[config.kind](path, config, labeled=None if split == "test" else True)
            for split, path in files.items()
        }
        labels = config.known_labels or labels_of(config.kind, splits["train"])
        _require_labels(config, labels, files["train"])
        if holds_out:
            splits = _hold_out(config, splits, files["train"])
        unanswerable = any(
            config.kind == "question_answering" and not example.label.texts
            for example in splits["train"]
        )
        notes = {"splits": list(splits), "labels": labels, "has_unanswerable": unanswerable}
        return splits, notes

    def describe(notes: Mapping[str, Any]) -> tuple[Task, Sequence[str]]:
        task = make_task(config, notes["labels"], notes["has_unanswerable"])
        return task, sorted(notes["splits"], key=("train", "valid", "test").index)

    data = prepare(
        config,
        tokenizer,
        name=config.kind,
        fingerprint={
            "format": FORMAT,
            "files": {
                split: [str(path.absolute()), stamp({"": path})] for split, path in files.items()
            },
            **{name: getattr(config, name) for name in STORED},
            "held_out": [config.valid_share, config.seed] if holds_out else None,
        },
        description=f"{config.kind} from {', '.join(map(str, files.values()))}",
        read=read,
        describe=describe,
    )
    counts = ", ".join(f"{name} {len(split):,} rows" for name, split in data.splits.items())
    has_labels = config.kind not in ("regression", "question_answering")
    labels = ", ".join(data.task.labels) if has_labels else "none"
    _logger.info("%s: %s; labels: %s.", config.kind, counts, labels)
    return data


def open_input(
    config: FilesConfig, task: Task, path: Path, tokenizer: Tokenizer, folder: Path
) -> Split:
    """Returns the examples of a file without their labels, for predictions; `folder` is for its arrays."""
    if not path.is_file():
        raise FileNotFoundError(
            f"--input: {path} is not a file; pass a file with the examples to predict, in the format of the"
            " training file."
        )
    examples = READERS[config.kind](path, config, labeled=False)
    task.encode(folder, "input", examples, tokenizer)
    return task.open(folder, "input", tokenizer, config)


def labels_of(kind: Kind, examples: Sequence[Example]) -> list[str]:
    """Returns the different labels in order.

    Integers are in numerical order, other labels in alphabetical order; the tag O is the first.
    """
    if kind in ("regression", "question_answering"):
        return []
    several = kind != "classification"
    found = {name for own in examples for name in (own.label if several else [own.label])}
    if kind != "token_classification" and all(x.removeprefix("-").isdecimal() for x in found):
        return sorted(found, key=lambda label: (Decimal(label), label))
    return sorted(found, key=lambda label: (kind != "token_classification" or label != "O", label))


def make_task(config: FilesConfig, labels: Sequence[str], has_unanswerable: bool = False) -> Task:
    """Returns the task with these labels; `has_unanswerable` is for question answering.

    Tags such as B-PER or I-PER are scored as entities.

    Raises:
      ValueError: `data.metric` is not a metric for these labels.
    """
    kind, metrics = config.kind, METRICS[config.kind]
    if kind == "classification":
        metrics = ("accuracy", "f1" if len(labels) == 2 else "macro_f1")
    elif kind == "regression":
        # Reported only: lower is better, so it cannot select the checkpoint.
        metrics = (*metrics, "mse")
    elif kind == "token_classification" and not any(x.startswith(("B-", "I-")) for x in labels):
        metrics = ("accuracy",)
    if config.metric and config.metric not in metrics:
        raise ValueError(
            f"data.metric={config.metric!r} does not suit the labels {', '.join(labels)}: choose"
            f" {' or '.join(metrics)}."
        )
    fields: dict[str, Any] = {
        "name": kind,
        "title": kind,
        "kind": kind,
        "labels": tuple(labels),
        "metrics": tuple(sorted(metrics, key=lambda metric: metric != config.metric)),
    }
    if kind == "token_classification":
        return TaggingTask(**fields)
    if kind == "question_answering":
        fields["labels"] = ("start", "end")
        return AnsweringTask(**fields, has_unanswerable=has_unanswerable)
    return SequenceTask(**fields, texts=config.columns)


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
    config: FilesConfig, splits: Mapping[str, list[Example]], path: Path
) -> dict[str, list[Example]]:
    """Returns the splits with a validation split, taken from the training split.

    Examples with the same texts stay together, and so do all questions on a context.
    """
    examples = splits["train"]
    first = 1 if config.kind == "question_answering" else 0
    contents = ("\0".join(example.texts[first:]).encode() for example in examples)
    try:
        is_valid = held_out_share(contents, config.valid_share, config.seed)
    except ValueError as error:
        raise ValueError(
            f"{path}: a validation set is held out of it, which {error} Add examples, or set"
            " --config.data.valid_file."
        ) from None
    return {
        **splits,
        "train": list(itertools.compress(examples, ~is_valid)),
        "valid": list(itertools.compress(examples, is_valid)),
    }
