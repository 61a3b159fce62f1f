"""A task: encoding of its examples, predictions, metrics and files of predictions."""

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from language.tasks.examples import DataConfig, Example, Split
from language.tokenizer import Tokenizer

Kind = Literal[
    "classification", "regression", "multi_label", "token_classification", "question_answering"
]
Metric = Literal[
    "accuracy",
    "f1",
    "macro_f1",
    "micro_f1",
    "exact_match",
    "precision",
    "recall",
    "matthews",
    "pearson",
    "spearman",
    "mse",
]
# Metrics that can select the checkpoint.
METRICS: Mapping[Kind, tuple[Metric, ...]] = {
    "classification": ("accuracy", "f1", "macro_f1"),  # f1 for two classes
    "regression": ("pearson", "spearman"),
    "multi_label": ("micro_f1", "macro_f1", "accuracy"),
    "token_classification": ("f1", "precision", "recall", "accuracy"),
    "question_answering": ("f1", "exact_match"),
}
Outputs = Mapping[str, npt.NDArray[Any]]  # outputs of the evaluation step, [N, …] in order of rows
Scores = dict[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task(abc.ABC):
    """A task of any kind.

    Args:
      name: Name of the task in results and file names.
      title: Name of the task in messages.
      kind: Kind of the model's head and loss.
      labels: Names of the labels, in the order of the model's outputs; empty if there are none.
      metrics: Metrics; the first one selects checkpoints.
      sizes: Number of examples in each split, if the task is a public benchmark.
    """

    name: str
    title: str
    kind: Kind = "classification"
    labels: tuple[str, ...] = ("0", "1")
    metrics: tuple[Metric, ...] = ("accuracy",)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    suffix: ClassVar[str] = ".tsv"  # of files of predictions
    label_advice: ClassVar[str] = (
        "correct it, or list all labels in --config.data.labels. Without this list, they are the labels of"
        " the training file."
    )

    @property
    def is_regression(self) -> bool:
        """Returns True if labels are scores instead of classes."""
        return self.kind == "regression"

    @property
    def num_labels(self) -> int:
        """Number of model outputs: one per label, or one score."""
        return len(self.labels) or 1

    @property
    def select_by(self) -> Metric:
        """Metric that selects checkpoints; higher is better."""
        return self.metrics[0]

    @property
    def has_threshold(self) -> bool:
        """Returns True if predictions have a decision threshold, which `tuned` chooses."""
        return False

    def has_all(self, split: str, examples: int) -> bool:
        """Returns True if the number `examples` is at least 99.9 % of the size of the benchmark's split."""
        return 1000 * examples >= 999 * self.sizes[split]

    def number_of(self, label: str, where: str) -> int:
        """Returns the index of a label; raises ValueError if it is unknown."""
        if label not in self.labels:
            shown = ", ".join(self.labels[:20]) + (", …" if len(self.labels) > 20 else "")
            raise ValueError(
                f"{where}: the label {label!r} is not among the labels {shown}: {self.label_advice}"
            )
        return self.labels.index(label)

    def tuned(self, split: Split, outputs: Outputs) -> "Task":
        """Returns the task with the best decision threshold for the labels of `split`, if it has any."""
        return self

    def file_name(self, split: str) -> str:
        """Returns the name of the file of predictions for a split."""
        return f"{self.name}-{split}{self.suffix}"

    @abc.abstractmethod
    def encode(
        self, folder: Path, split: str, examples: Sequence[Example], tokenizer: Tokenizer
    ) -> None:
        """Tokenizes the examples of a split and writes tokens and labels to files in `folder`.

        Raises:
          ValueError: A label is invalid.
        """

    @abc.abstractmethod
    def open(self, folder: Path, split: str, tokenizer: Tokenizer, config: DataConfig) -> Split:
        """Opens a split that `encode` wrote, as rows of at most `config.max_len` tokens."""

    @abc.abstractmethod
    def predict(self, split: Split, outputs: Outputs) -> Any:
        """Returns the predictions for a split, given the outputs of the model.

        If `outputs` has fewer rows than the split, examples that need the missing rows are left out.
        """

    @abc.abstractmethod
    def score(self, split: Split, predicted: Any) -> tuple[Scores, Scores]:
        """Returns the metrics of predictions, and their standard errors over the examples."""

    @abc.abstractmethod
    def write(self, file: Path, split: Split, predicted: Any) -> None:
        """Writes predictions, and labels where split and format have them; replaces the file atomically."""


def ratio_error(numerators: npt.NDArray[Any], denominators: npt.NDArray[Any]) -> float:
    """Returns the standard error of Σ numerators / Σ denominators over the examples.

    The delta method: √(Σ (numerator − ratio · denominator)²) / Σ denominators. It applies to means (the
    denominators are 1), and to F1 = Σ 2 TP / Σ (2 TP + FP + FN). Both arrays are [N].
    """
    total = denominators.sum(dtype=float)
    if not total:
        return 0.0
    ratio = numerators.sum(dtype=float) / total
    return math.sqrt(float(np.square(numerators - ratio * denominators).sum())) / float(total)
