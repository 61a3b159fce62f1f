"""Predictions as files: what GLUE's server takes, and for splits with labels what scores come from."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from harness.whole_files import write_whole
from language.glue import metrics
from language.glue.tasks import MAX_SCORE, GlueTask


class Predictions(NamedTuple):
    """What a file of predictions holds.

    Args:
      ids: [N], the examples.
      predictions: [N], classes or scores.
      labels: [N], or None in a submission.
    """

    ids: npt.NDArray[np.str_]
    predictions: npt.NDArray[Any]
    labels: npt.NDArray[Any] | None


def file_name(task: GlueTask, split: str) -> str:
    """The name that GLUE's server wants, or `<task>-<split>.tsv` for what it does not take."""
    return task.submissions.get(split, f"{task.name}-{split}.tsv")


def write_predictions(
    task: GlueTask,
    split: str,
    ids: npt.NDArray[np.str_],
    predictions: npt.NDArray[Any],
    folder: Path,
    *,
    labels: npt.NDArray[Any] | None = None,
) -> Path:
    """Writes `index`, `prediction` and, where there are labels, `label`; all or nothing.

    Classes have the names of the task's own files. Without labels, scores are cut to where labels can
    be; with labels they stay as they are, so that all metrics can be computed from the file.

    Args:
      task: whose predictions they are.
      split: its name decides that of the file.
      ids: [N], the split's.
      predictions: [N]; logits and [N, 1] are taken, too.
      folder: made if missing.
      labels: [N].

    Returns:
      The file.

    Raises:
      ValueError: The lengths differ, or a prediction cannot be one.
      OSError: The file cannot be written.
    """
    guesses = metrics.predictions(task, predictions)
    columns = [("index", [str(index) for index in ids])]
    if task.is_regression and labels is None:
        guesses = guesses.clip(0, MAX_SCORE)
    columns.append(("prediction", _words(task, guesses)))
    if labels is not None:
        columns.append(("label", _words(task, np.asarray(labels))))
    if len({len(column) for _, column in columns}) > 1:
        found = ", ".join(f"{len(column):,} of {name}" for name, column in columns)
        raise ValueError(f"A file of predictions needs columns of one length, and got {found}.")
    rows = [[name for name, _ in columns], *zip(*(column for _, column in columns), strict=True)]
    file = folder / file_name(task, split)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(file, "".join("\t".join(row) + "\n" for row in rows).encode())
    return file


def read_predictions(task: GlueTask, file: Path) -> Predictions:
    """Reads what `write_predictions` wrote.

    Raises:
      FileNotFoundError: It is not there.
      ValueError: It is none of this task's.
    """
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    header = lines[0]
    if header not in (["index", "prediction"], ["index", "prediction", "label"]):
        raise ValueError(
            f"{file} holds no predictions: its first line must be index, prediction and perhaps label."
        )
    columns: list[list[str]] = [[] for _ in header]
    for number, cells in enumerate(lines[1:], 2):
        if len(cells) != len(header):
            raise ValueError(
                f"{file}, line {number}, has {len(cells)} columns instead of {len(header)}."
            )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell)
    ids, *values = columns
    read = [_numbers(task, column, file) for column in values]
    return Predictions(np.array(ids), read[0], read[1] if len(read) > 1 else None)


def _words(task: GlueTask, values: npt.NDArray[Any]) -> list[str]:
    """Classes by their names; scores so that float32 comes back the same."""
    if task.is_regression:
        return [f"{value:.9g}" for value in values.tolist()]
    return [task.labels[value] for value in values.tolist()]


def _numbers(task: GlueTask, words: Sequence[str], file: Path) -> npt.NDArray[Any]:
    if not task.is_regression:
        for number, word in enumerate(words, 2):
            if word not in task.labels:
                raise ValueError(
                    f"{file}, line {number}: {word!r} is no label of {task.title}; those are"
                    f" {', '.join(task.labels)}."
                )
        return np.array([task.labels.index(word) for word in words], np.int32)
    scores = []
    for number, word in enumerate(words, 2):
        try:
            value = float(word)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{file}, line {number}: {word!r} is no score.")
        scores.append(value)
    return np.array(scores, np.float32)
