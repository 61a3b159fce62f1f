"""Statistics of the splits of a task as table rows: sizes, labels and lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from language.glue.tasks import GlueTask
from language.tasks.examples import EncodedSplit, Example, truncated_lengths
from reporting.tables import lengths_cell


def word_statistics(task: GlueTask, examples: Sequence[Example], distinct: int) -> dict[str, str]:
    """Returns a split as a table row; `distinct` is the number of distinct examples."""
    labels = [example.label for example in examples if example.label is not None]
    lengths = [sum(len(text.split()) for text in example.texts) for example in examples]
    return _row(task, np.array(lengths), np.array(labels), distinct, "words")


def token_statistics(
    task: GlueTask, split: EncodedSplit, distinct: int, max_len: int
) -> dict[str, str]:
    """Returns the table row of a tokenized split, with the fraction of examples truncated at `max_len`."""
    lengths = split.lengths.sum(axis=1) + split.num_special
    kept = truncated_lengths(split.lengths, max_len, split.num_special)
    truncated = (kept < split.lengths).any(axis=1)
    labels = np.array([] if split.labels is None else split.labels)
    row = _row(task, lengths, labels, distinct, "tokens")
    return row | {f"truncated at {max_len}": f"{100 * truncated.mean():.2f} %"}


def _row(
    task: GlueTask,
    lengths: npt.NDArray[np.integer],
    labels: npt.NDArray[Any],
    distinct: int,
    unit: str,
) -> dict[str, str]:
    shares = "none"
    if len(labels) and task.is_regression:
        shares = f"{labels.mean(dtype=float):.2f} ± {labels.std(dtype=float):.2f}"
    elif len(labels):
        counts = np.bincount(labels.astype(int), minlength=len(task.labels))
        shares = ", ".join(f"{100 * count / len(labels):.1f} %" for count in counts.tolist())
    return {
        "examples": f"{len(lengths):,}",
        "distinct": f"{distinct:,}",
        ", ".join(task.labels) or "scores": shares,
        **lengths_cell(lengths, unit),
    }
