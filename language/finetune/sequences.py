"""Tasks with a label per text or pair of texts: one class, several labels or a score."""

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep import cache
from language.finetune import metrics
from language.finetune.examples import (
    Example,
    Split,
    open_arrays,
    save_arrays,
    save_texts,
)
from language.finetune.task import DataConfig, Outputs, Scores, Task
from language.tokenizer import Tokenizer
from nystromformer_jax.support.predictions import probabilities

Values = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SequenceTask(Task):
    """A task with a label per example.

    Args:
      texts: Columns of the texts: one, or two for a pair.
      clip: Smallest and largest score, also in a file of predictions without labels.
    """

    texts: tuple[str, ...]
    clip: tuple[float, float] | None = None

    @property
    def dtype(self) -> type[np.float32] | type[np.int32]:
        """Dtype of labels and predictions."""
        return np.float32 if self.is_regression else np.int32

    def number(self, label: Any, where: str) -> Any:
        """Returns the label of an example as a class number, a score, or a 0 or 1 for each label.

        Raises:
          ValueError: It is not a label of this task.
        """
        if self.kind == "multi_label":
            chosen = {self.number_of(name, where) for name in label}
            return [int(i in chosen) for i in range(len(self.labels))]
        if not self.is_regression:
            return self.number_of(label, where)
        try:  # Python would read "1_000" as 1000
            score = math.nan if isinstance(label, bool) or "_" in str(label) else float(label)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        largest = float(np.finfo(np.float32).max)
        low, high = self.clip or (-largest, largest)
        if not low <= score <= high:  # also if it is not a number
            needed = f"from {low:g} to {high:g}" if self.clip else "that float32 can represent"
            raise ValueError(
                f"{where}: the label must be a number {needed}, not {label!r:.50}. For names of classes, use"
                " --config=configs/finetune.py:classification."
            )
        return score

    def encode(
        self, folder: Path, split: str, examples: Sequence[Example], tokenizer: Tokenizer
    ) -> None:
        """Writes tokens, ids and, if the examples have them, labels."""
        arrays = {"ids": np.array([example.id or str(i) for i, example in enumerate(examples)])}
        if examples[0].label is not None:
            numbers = [self.number(example.label, example.where) for example in examples]
            arrays["labels"] = np.array(numbers, self.dtype)
        save_texts(folder, split, [text for own in examples for text in own.texts], tokenizer)
        save_arrays(folder, split, arrays)

    def open(self, folder: Path, split: str, tokenizer: Tokenizer, config: DataConfig) -> Split:
        """Opens a split; a row is an example."""
        tokens, offsets, ids = open_arrays(folder, split, "tokens", "offsets", "ids")
        file = folder / f"{split}_labels.npy"
        shape = (len(ids), *((len(self.labels),) if self.kind == "multi_label" else ()))
        return Split(
            tokens=tokens,
            starts=offsets[:-1].reshape(-1, len(self.texts)),
            lengths=np.diff(offsets).reshape(-1, len(self.texts)),
            labels=cache.open_array(file) if file.exists() else np.zeros(shape, self.dtype),
            is_labeled=file.exists(),
            ids=ids,
            tokenizer=tokenizer,
            truncation=config.truncation,
            owners=np.arange(len(ids)),
        )

    def predict(self, split: Split, outputs: Outputs) -> Values:
        """Returns classes or scores [N], or for several labels ones and zeros [N, C]."""
        logits = outputs["logits"]
        if not np.isfinite(logits).all():
            raise ValueError(
                f"{np.count_nonzero(~np.isfinite(logits))} of the outputs for {self.title} are not"
                " finite, so no metric can be computed."
            )
        if self.is_regression:
            return logits[:, 0]
        if self.kind == "multi_label":  # a probability of at least 0.5
            return (logits >= 0).astype(np.int32)
        return logits.argmax(axis=-1).astype(np.int32)

    def score(self, split: Split, predicted: Values) -> tuple[Scores, Scores]:
        """Returns the metrics of predictions, and their standard errors over the examples."""
        labels = split.labels[: len(predicted)]
        return (
            metrics.score(self, predicted, labels),
            metrics.standard_error(self, predicted, labels),
        )

    def write(self, file: Path, split: Split, predicted: Values) -> None:
        """Writes the columns `index`, `prediction` and, if the split has labels, `label`.

        Classes are written by name, several labels as a JSON list of names. Without labels, scores are
        clipped to `clip`. With labels they are not, so that metrics can be computed from the file.
        """
        if self.clip and not split.is_labeled:
            predicted = predicted.clip(*self.clip)
        count = len(predicted)
        columns = [
            ["index", *split.ids[:count].tolist()],
            ["prediction", *self.names_of(predicted)],
        ]
        if split.is_labeled:
            columns.append(["label", *self.names_of(split.labels[:count])])
        rows = zip(*columns, strict=True)
        self.write_text(file, "".join("\t".join(row) + "\n" for row in rows))

    def write_scores(self, file: Path, split: Split, outputs: Outputs) -> None:
        """Writes predictions with the probability of every label; the predictions of regression have none.

        The file is a table, or has JSON lines if its name ends in .jsonl.
        """
        predicted = self.predict(split, outputs)
        names = self.names_of(predicted.clip(*self.clip) if self.clip else predicted)
        labels: Sequence[str] = ()
        chances = np.zeros((len(names), 0))
        if not self.is_regression:
            labels = self.labels
            is_multi_label = self.kind == "multi_label"
            chances = probabilities(outputs["logits"], is_multi_label=is_multi_label)
        rows = zip(split.ids.tolist(), names, chances.tolist(), strict=True)
        if file.suffix != ".jsonl":
            table = [["index", "prediction", *labels]]
            table += [[index, name, *(f"{x:.6f}" for x in own)] for index, name, own in rows]
            self.write_text(file, "".join("\t".join(row) + "\n" for row in table))
            return
        readers: dict[str, Callable[[str], Any]] = {"multi_label": json.loads, "regression": float}
        reads = readers.get(self.kind, str)
        lines = (
            {
                "index": index,
                "prediction": reads(name),
                **({"scores": dict(zip(labels, own, strict=True))} if own else {}),
            }
            for index, name, own in rows
        )
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        self.write_text(file, text)

    def names_of(self, values: Values) -> list[str]:
        """Returns label names, or scores with enough digits to restore float32 exactly."""
        if self.is_regression:
            return [f"{x:.9g}" for x in values.tolist()]
        if self.kind == "multi_label":
            names = np.array(self.labels)
            return [json.dumps(names[row > 0].tolist(), ensure_ascii=False) for row in values]
        return [self.labels[x] for x in values.tolist()]
