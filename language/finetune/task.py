"""A task of fine-tuning, and the section "data" of a config, which has its source."""

import abc
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from language.finetune.examples import Example, Split, Truncation
from language.tokenizer import Tokenizer
from nystromformer_jax.support.durable import write_bytes

if TYPE_CHECKING:
    from language.finetune.files import FilesConfig

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
    def open(self, folder: Path, split: str, tokenizer: Tokenizer, config: "DataConfig") -> Split:
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
        """Writes predictions, and labels where split and format have them, with `write_text`."""

    @staticmethod
    def write_text(file: Path, content: str) -> None:
        """Replaces a file atomically; creates its folder if it is missing."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(file, content.encode())


class Source(NamedTuple):
    """The files of a task, which are read when prepared data are missing."""

    name: str  # beginning of the name of the folder of prepared data
    description: str  # logged when the files are read
    fingerprint: Mapping[str, Any]  # everything that the data depend on, besides the tokenizer
    # Returns the examples of each split, and notes as a JSON object.
    read: Callable[[], tuple[Mapping[str, Sequence[Example]], Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(abc.ABC):
    """The keys of the section "data" that all fine-tuning tasks have.

    Args:
      max_len: Tokens per example, including special tokens and padding. The longer text of a pair is
        truncated until both fit.
      examples: Maximum number of rows for training, a random sample stratified by label; 0: all. A larger
        sample with the same seed begins with the smaller one.
      truncation: Tokens kept of a text that is too long: "head", the first ones; "head_tail", a quarter
        from the start and the rest from the end (Sun et al. 2019, arXiv:1905.05583, 5.3.1: 128 and 382).
      group_by_length: Batch examples of similar length together, and pad batches to few lengths. Ignored if
        the mesh splits the length, or if outputs depend on the padded length: if `landmark_layout` is not
        "real", `mask_conv` is False, or the attention is Reformer.
      base_len: Shortest padded length of a batch. Batches are padded to this length times a power of two, or
        to `max_len`, and short batches have fewer accumulation parts. The configs set 16. 0, the value of
        runs without this key: batches are padded from 64 tokens on, and all have the same number of parts.
      seed: Seed of the sample and of the validation split; training uses `train.seed`.
    """

    max_len: int = 128
    examples: int = 0
    truncation: Truncation = "head"
    group_by_length: bool = True
    base_len: int = 0
    seed: int = 0

    def require_room(self, least: int, name: str) -> None:
        """Raises ValueError if `max_len` is less than `least`, or another key is too small."""
        if self.max_len < least:
            raise ValueError(
                f"data.max_len={self.max_len}: an example of {name} needs at least {least} tokens,"
                " the special ones and some of each text."
            )
        if self.examples < 0:
            raise ValueError(
                f"data.examples: needs 0 for all, or a positive number, got {self.examples}."
            )
        if self.base_len < 0:
            raise ValueError(f"data.base_len: needs 0 or more, got {self.base_len}.")

    @abc.abstractmethod
    def source(self) -> Source:
        """Finds the files.

        Raises:
          ValueError: No file is named.
          FileNotFoundError: A file is missing.
        """

    @abc.abstractmethod
    def make_task(
        self, labels: Sequence[str] | None = None, has_unanswerable: bool = False
    ) -> Task:
        """Returns the task.

        The arguments are for one's own files. `labels` are those of the training file, None before it is
        read: the labels are then placeholders. `has_unanswerable` is for question answering.

        Raises:
          ValueError: `data.metric` is not a metric for these labels.
        """

    @abc.abstractmethod
    def of_input(self) -> "FilesConfig":
        """Returns the section with which files of examples to predict are read."""


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
