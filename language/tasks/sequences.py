"""Tasks with a label per text or pair of texts: one class, several labels or a score."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from language.tasks import metrics
from language.tasks.examples import EncodedSplit
from language.tasks.task import Outputs, Scores, Task
from nystromformer_jax.support.durable import write_bytes

Values = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """A task with a label per example.

    Args:
      texts: Columns of the texts: one, or two for a pair.
      threshold: Smallest probability at which class 1 of two classes, or a label of a multi-label task, is
        predicted. None: the most probable class is predicted, and labels from a probability of 0.5.
      clip: Smallest and largest score in a file of predictions without labels.
      submissions: File names of predictions by split, where a server requires other names.
    """

    texts: tuple[str, ...]
    threshold: float | None = None
    clip: tuple[float, float] | None = None
    submissions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def parse_label(self, word: str) -> float | None:
        """Converts `word` to a class number or a score; returns None if it is invalid."""
        if not self.is_regression:
            return self.labels.index(word) if word in self.labels else None
        try:
            score = math.nan if "_" in word else float(word)  # Python would read "0_1" as 1
        except ValueError:
            return None
        return score if math.isfinite(score) else None

    def file_name(self, split: str) -> str:
        """Returns the name required by the GLUE server, or `<task>-<split>.tsv` for other splits."""
        return self.submissions.get(split, f"{self.name}-{split}.tsv")

    def predict(self, split: EncodedSplit, outputs: Outputs) -> Values:
        """Returns classes or scores [N], or for several labels ones and zeros [N, C]."""
        return self.decide(outputs["logits"])

    def decide(self, logits: Values) -> Values:
        """Returns predicted classes or scores [N], or ones at predicted labels [N, C], from logits [N, C]."""
        if logits.ndim != 2 or logits.shape[1] != self.num_labels:
            raise ValueError(
                f"Outputs for {self.title} must have the shape [N, {self.num_labels}], got"
                f" {list(logits.shape)}."
            )
        if not np.isfinite(logits).all():
            raise ValueError(
                f"{np.count_nonzero(~np.isfinite(logits))} of the outputs for {self.title} are not"
                " finite, so no metric can be computed."
            )
        if self.is_regression:
            return logits[:, 0]
        if self.kind == "multi_label" or self.threshold is not None:
            threshold = 0.5 if self.threshold is None else self.threshold
            return (self._probabilities(logits) >= threshold).astype(np.int32)
        return logits.argmax(axis=-1).astype(np.int32)

    def score(self, split: EncodedSplit, predicted: Values) -> tuple[Scores, Scores]:
        """Returns the metrics of predictions, and their standard errors over the examples."""
        assert split.labels is not None
        labels = split.labels[: len(predicted)]
        return (
            metrics.score(self, predicted, labels),
            metrics.standard_error(self, predicted, labels),
        )

    @property
    def has_threshold(self) -> bool:
        """Returns True for two classes and for several labels."""
        two_classes = self.kind == "classification" and len(self.labels) == 2
        return two_classes or self.kind == "multi_label"

    def tuned(self, split: EncodedSplit, outputs: Outputs) -> Task:
        """Returns the task with the threshold of the highest F1 on the labels of `split`.

        For several labels, this is the micro F1 of one threshold for all. The threshold is halfway between
        two neighboring probabilities, not at one of them, so that it also suits other examples.
        """
        assert self.has_threshold
        assert split.labels is not None
        probabilities = self._probabilities(outputs["logits"]).ravel()
        order = np.argsort(-probabilities, kind="stable")
        ranked, labels = probabilities[order], split.labels[: len(outputs["logits"])].ravel()[order]
        # F1 if the first k are predicted is 2 TP / (k + number of true labels).
        f1 = 2 * np.cumsum(labels) / (np.arange(1, len(labels) + 1) + max(labels.sum(), 1))
        f1[:-1][ranked[:-1] == ranked[1:]] = -1  # equal probabilities cannot be separated
        best = int(f1.argmax())
        following = ranked[best + 1] if best + 1 < len(ranked) else 0.0
        return dataclasses.replace(self, threshold=float((ranked[best] + following) / 2))

    def write(self, file: Path, split: EncodedSplit, predicted: Values) -> None:
        """Writes a table; see `write_predictions`."""
        count = len(predicted)
        labels = None if split.labels is None else split.labels[:count]
        write_predictions(self, file, split.ids[:count], predicted, labels=labels)

    def _probabilities(self, logits: Values) -> Values:
        """Returns the probability of class 1 of two classes, [N], or of each label, [N, C]."""
        logits = logits.astype(np.float64)  # in float32 different probabilities near 1 become equal
        difference = logits if self.kind == "multi_label" else logits[:, 1] - logits[:, 0]
        return np.exp(-np.logaddexp(0, -difference))


class Predictions(NamedTuple):
    """Content of a file of predictions."""

    ids: npt.NDArray[np.str_]  # [N]
    predictions: Values  # [N] classes or scores, [N, C] ones and zeros
    labels: Values | None  # like the predictions; None if the file has no labels


def write_predictions(
    task: SequenceTask,
    file: Path,
    ids: npt.NDArray[np.str_],
    predicted: Values,
    *,
    labels: Values | None = None,
) -> None:
    """Writes the columns `index`, `prediction` and, with labels, `label`.

    Classes are written by name, several labels as a JSON list of names. Without labels, scores are clipped
    to `task.clip`. With labels they are not, so that metrics can be computed from the file. The file is
    replaced atomically; its folder is created if missing. `ids`, `predicted` and `labels` have N rows.
    """
    if task.clip and labels is None:
        predicted = predicted.clip(*task.clip)
    columns = [["index", *ids.tolist()], ["prediction", *_format(task, predicted)]]
    if labels is not None:
        columns.append(["label", *_format(task, labels)])
    rows = zip(*columns, strict=True)
    content = "".join("\t".join(row) + "\n" for row in rows).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(file, content)


def read_predictions(task: SequenceTask, file: Path) -> Predictions:
    """Reads a file written by `write_predictions` for one label per example.

    Raises:
      ValueError: The file is invalid, or an example has a list of labels.
    """
    text = file.read_text(encoding="utf-8").rstrip("\n")
    header, *rows = [line.split("\t") for line in text.split("\n")]
    if header not in (["index", "prediction"], ["index", "prediction", "label"]):
        raise ValueError(
            f"{file} contains no predictions: its first line must be index, prediction and optionally"
            " label."
        )
    for number, cells in enumerate(rows, 2):
        if len(cells) != len(header):
            raise ValueError(
                f"{file}, line {number}, has {len(cells)} columns instead of {len(header)}."
            )
    ids, predicted, *labels = ([row[column] for row in rows] for column in range(len(header)))
    return Predictions(
        np.array(ids),
        _parse(task, predicted, file),
        _parse(task, labels[0], file) if labels else None,
    )


def _format(task: SequenceTask, values: Values) -> list[str]:
    """Returns label names, or scores with enough digits to restore float32 exactly."""
    if task.is_regression:
        return [f"{x:.9g}" for x in values.tolist()]
    if task.kind == "multi_label":
        names = np.array(task.labels)
        return [json.dumps(names[row > 0].tolist(), ensure_ascii=False) for row in values]
    return [task.labels[x] for x in values.tolist()]


def _parse(task: SequenceTask, words: Sequence[str], file: Path) -> Values:
    values = [task.parse_label(word) for word in words]
    if None in values:
        row = values.index(None)
        needed = f"label of {task.title}; the labels are {', '.join(task.labels)}"
        if task.is_regression:
            needed = "score"
        raise ValueError(f"{file}, line {row + 2}: {words[row]!r} is not a {needed}.")
    return np.array(values, np.float32 if task.is_regression else np.int32)
