"""Config section "data" for fine-tuning on one's own files."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path

from dataprep import cache
from dataprep.archives import parse_json
from language.tasks.examples import DataConfig
from language.tasks.task import METRICS, Kind
from nystromformer_jax.support.spelling import nearest

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
        if not self.labels.startswith("["):
            given = [label.strip() for label in self.labels.split(",")] if self.labels else []
            return given if self.kind == "token_classification" else list(map(whole_number, given))
        try:
            labels = parse_json(self.labels, "data.labels", "")
        except ValueError:
            labels = [None]
        if not all(isinstance(label, str) for label in labels):
            raise ValueError(
                f"data.labels: needs labels separated by commas or a JSON list of strings, got {self.labels}."
            )
        return list(labels)

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


def whole_number(label: str) -> str:
    """Returns the label 1 for 1.0, which is the same number."""
    found = re.fullmatch(r"(-?\d+)\.0+", label)
    return found[1] if found else label
