"""One's own files: the section "data" of a config, and the examples of tables, CoNLL and SQuAD."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from dataprep import cache
from dataprep.archives import parse_json, stamp
from dataprep.holdout import held_out_share
from language.finetune import conll, rows, squad
from language.finetune.answering import AnsweringTask
from language.finetune.examples import Example
from language.finetune.sequences import SequenceTask
from language.finetune.tagging import TaggingTask
from language.finetune.task import METRICS, DataConfig, Kind, Source, Task
from nystromformer_jax.support.spelling import nearest

# Part of every fingerprint. Increase it when the same files and tokenizer give different data.
FORMAT = 7

# Keys on which the prepared data depend.
STORED = ("kind", "text", "text_pair", "label", "separator", "labels")
# Keys without an effect.
UNUSED: Mapping[Kind, tuple[str, ...]] = {
    "classification": ("separator", "overlap"),
    "regression": ("separator", "overlap", "labels"),
    "multi_label": ("overlap",),
    "token_classification": ("text", "text_pair", "label", "separator", "overlap", "truncation"),
    "question_answering": ("text", "text_pair", "label", "separator", "labels", "truncation"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesConfig(DataConfig):
    """The section "data" of a config. `DataConfig` has further keys.

    Args:
      kind: Kind of the task.
      train_file: Training examples. Sequence tasks read .tsv, .csv and .jsonl, token classification reads
        CoNLL files, question answering reads SQuAD's JSON; all are UTF-8.
      valid_file: Validation examples; empty: `valid_share` of the training examples.
      test_file: Test examples, with or without labels; empty: none.
      text: Column of the text.
      text_pair: Column of the second text; empty: examples have one text.
      label: Column of the label.
      separator: Text between several labels in a cell; empty: a cell has a JSON list.
      labels: All labels, in the order of class numbers, separated by commas or as a JSON list; empty: those
        of the training file, sorted.
      metric: Metric that selects the checkpoint; empty: the first one of the kind.
      valid_share: Fraction of the training examples held out for validation without a `valid_file`.
      overlap: Tokens of a long context that two neighboring windows share (question answering).
    """

    kind: Kind
    train_file: str = ""
    valid_file: str = ""
    test_file: str = ""
    text: str = "text"
    text_pair: str = ""
    label: str = "label"
    separator: str = ""
    labels: str = ""
    metric: str = ""
    valid_share: float = 0.1
    overlap: int = 0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name in UNUSED[self.kind] and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"data.{field.name}={getattr(self, field.name)!r}: {self.kind} does not use this key;"
                    f" leave it at {field.default!r}."
                )
        least = 16 if self.kind == "question_answering" else 1 + 2 * len(self.columns)
        self.require_room(least, self.kind)
        if not 0 <= 2 * self.overlap < self.max_len:
            raise ValueError(
                f"data.overlap={self.overlap}: needs 0 or more and less than half of"
                f" data.max_len={self.max_len}, so that every window has new tokens."
            )
        if self.metric and self.metric not in METRICS[self.kind]:
            raise ValueError(
                f"data.metric: {self.metric!r} is not a metric that can select checkpoints of"
                f" {self.kind}{nearest(self.metric, METRICS[self.kind])}"
            )
        if not 0 < self.valid_share < 1:
            raise ValueError(
                f"data.valid_share: needs a number between 0 and 1, got {self.valid_share}."
            )
        labels = self.known_labels
        if len(set(labels)) != len(labels) or len(labels) == 1 or "" in labels:
            raise ValueError(
                "data.labels: needs two or more different labels that are not empty, got"
                f" {', '.join(map(repr, labels))}."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the texts."""
        return (self.text, self.text_pair) if self.text_pair else (self.text,)

    @property
    def known_labels(self) -> list[str]:
        """The labels of the config; empty if they are those of the training file."""
        labels: Any = self.labels.split(",") if self.labels else []
        if self.labels.startswith("["):
            try:
                labels = parse_json(self.labels, "data.labels", "")
            except ValueError:
                labels = [None]
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(
                f"data.labels: needs labels separated by commas or a JSON list of strings, got {self.labels}."
            )
        given = [label.strip() for label in labels]
        return given if self.kind == "token_classification" else list(map(rows.whole_number, given))

    @property
    def files(self) -> dict[str, Path]:
        """Paths of the files by split.

        Raises:
          ValueError: There is no training file.
          FileNotFoundError: A file does not exist.
        """
        if not self.train_file:
            raise ValueError(
                "data.train_file: needs the path of the training examples, such as"
                " --config.data.train_file=train.csv."
            )
        given = {"train": self.train_file, "valid": self.valid_file, "test": self.test_file}
        paths = {split: cache.user_path(name) for split, name in given.items() if name}
        for split, path in paths.items():
            if not path.is_file():
                raise FileNotFoundError(
                    f"data.{split}_file: {path} {'is not a file' if path.exists() else 'does not exist'};"
                    " pass the path of a file."
                )
        return paths

    def read_file(self, path: Path, *, labeled: bool | None) -> list[Example]:
        """Returns the examples of a file.

        If `labeled` is None, labels are read if the file has them; if it is False, they are not.

        Raises:
          ValueError: The file is invalid; the message names the file and the place.
        """
        if self.kind == "token_classification":
            return conll.read(path, labeled=labeled)
        if self.kind == "question_answering":
            return squad.read(path, labeled=labeled)
        return rows.read(path, self, labeled=labeled)

    def source(self) -> Source:
        """See `DataConfig`. Validation examples are held out if there is no file of them."""
        files = self.files
        holds_out = "valid" not in files

        def read() -> tuple[dict[str, list[Example]], dict[str, Any]]:
            splits = {
                split: self.read_file(path, labeled=None if split == "test" else True)
                for split, path in files.items()
            }
            labels = self.known_labels or labels_of(self.kind, splits["train"])
            self._require_labels(labels, files["train"])
            if holds_out:
                splits = self._hold_out(splits, files["train"])
            unanswerable = any(
                self.kind == "question_answering" and not example.label.texts
                for example in splits["train"]
            )
            notes = {"splits": list(splits), "labels": labels, "has_unanswerable": unanswerable}
            return splits, notes

        fingerprint = {
            "format": FORMAT,
            "files": {
                split: [str(path.absolute()), stamp({"": path})] for split, path in files.items()
            },
            **{name: getattr(self, name) for name in STORED},
            "held_out": [self.valid_share, self.seed] if holds_out else None,
        }
        description = f"{self.kind} from {', '.join(map(str, files.values()))}"
        return Source(self.kind, description, fingerprint, read)

    def make_task(
        self, labels: Sequence[str] | None = None, has_unanswerable: bool = False
    ) -> Task:
        """See `DataConfig`. Tags such as B-PER or I-PER are scored as entities."""
        kind, metric, metrics = self.kind, self.metric, METRICS[self.kind]
        if labels is None:
            labels = self.known_labels or (() if kind == "regression" else ("0", "1"))
            metric = metric if self.labels else ""
        if kind == "classification":
            metrics = ("accuracy", "f1" if len(labels) == 2 else "macro_f1")
        elif kind == "regression":
            # Reported only: lower is better, so it cannot select the checkpoint.
            metrics = (*metrics, "mse")
        elif kind == "token_classification" and not any(x.startswith(("B-", "I-")) for x in labels):
            metrics = ("accuracy",)
        if metric and metric not in metrics:
            raise ValueError(
                f"data.metric={metric!r} does not suit the labels {', '.join(labels)}: choose"
                f" {' or '.join(metrics)}."
            )
        fields: dict[str, Any] = {
            "name": kind,
            "title": kind,
            "kind": kind,
            "labels": tuple(labels),
            "metrics": tuple(sorted(metrics, key=lambda name: name != metric)),
        }
        if kind == "token_classification":
            return TaggingTask(**fields)
        if kind == "question_answering":
            fields["labels"] = ("start", "end")
            return AnsweringTask(**fields, has_unanswerable=has_unanswerable)
        return SequenceTask(**fields, texts=self.columns)

    def of_input(self) -> "FilesConfig":
        """See `DataConfig`: the section itself."""
        return self

    def _require_labels(self, labels: Sequence[str], path: Path) -> None:
        """Raises ValueError if a task with labels has fewer than two."""
        if self.kind in ("regression", "question_answering") or len(labels) >= 2:
            return
        column = ", or set --config.data.label to another column"
        raise ValueError(
            f"{path} has {f'only the label {labels[0]!r}' if labels else 'no labels'}, and {self.kind} needs"
            f" two or more: add examples with other labels"
            f"{'' if self.kind == 'token_classification' else column}."
        )

    def _hold_out(
        self, splits: Mapping[str, list[Example]], path: Path
    ) -> dict[str, list[Example]]:
        """Returns the splits with a validation split, taken from the training split.

        Examples with the same texts stay together, and so do all questions on a context.
        """
        examples = splits["train"]
        first = 1 if self.kind == "question_answering" else 0
        contents = ("\0".join(example.texts[first:]).encode() for example in examples)
        try:
            is_valid = held_out_share(contents, self.valid_share, self.seed)
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
