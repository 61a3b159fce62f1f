"""Files of predictions, in the format of GLUE's server."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from language.glue import metrics
from language.glue.tasks import MAX_SCORE, GlueTask
from nystromformer_jax.durable import write_bytes


class Predictions(NamedTuple):
    """Content of a file of predictions."""

    ids: npt.NDArray[np.str_]  # [N]
    predictions: npt.NDArray[Any]  # [N], classes or scores
    labels: npt.NDArray[Any] | None  # [N], or None in a submission


def file_name(task: GlueTask, split: str) -> str:
    """Returns the file name that GLUE's server needs, or `<task>-<split>.tsv` for other splits."""
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
    """Writes the columns `index`, `prediction` and, with labels, `label`; returns the file.

    Classes are written by their names in the task's files. Scores without labels are clipped to the
    range of labels; with labels they are not, so that all metrics can be computed from the file. The file
    is replaced atomically.

    Args:
      task: The task.
      split: Name of the split, which gives the file's name.
      ids: [N], ids of the examples.
      predictions: [N], or logits; see `metrics.predictions`.
      folder: Created if missing.
      labels: [N].
    """
    predicted = metrics.predictions(task, predictions)
    columns = [("index", [str(index) for index in ids])]
    if task.is_regression and labels is None:
        predicted = predicted.clip(0, MAX_SCORE)
    columns.append(("prediction", _format(task, predicted)))
    if labels is not None:
        columns.append(("label", _format(task, np.asarray(labels))))
    if len({len(column) for _, column in columns}) > 1:
        found = ", ".join(f"{len(column):,} of {name}" for name, column in columns)
        raise ValueError(f"A file of predictions needs columns of one length, and got {found}.")
    rows = [[name for name, _ in columns], *zip(*(column for _, column in columns), strict=True)]
    file = folder / file_name(task, split)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(file, "".join("\t".join(row) + "\n" for row in rows).encode())
    return file


def read_predictions(task: GlueTask, file: Path) -> Predictions:
    """Reads a file of `write_predictions`; invalid content is a ValueError."""
    lines = [line.split("\t") for line in file.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    header = lines[0]
    if header not in (["index", "prediction"], ["index", "prediction", "label"]):
        raise ValueError(
            f"{file} holds no predictions: its first line must be index, prediction and optionally label."
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
    read = [_parse(task, column, file) for column in values]
    return Predictions(np.array(ids), read[0], read[1] if len(read) > 1 else None)


def _format(task: GlueTask, values: npt.NDArray[Any]) -> list[str]:
    """Formats classes by their names, and scores so that float32 is read back exactly."""
    if task.is_regression:
        return [f"{value:.9g}" for value in values.tolist()]
    return [task.labels[value] for value in values.tolist()]


def _parse(task: GlueTask, words: Sequence[str], file: Path) -> npt.NDArray[Any]:
    values: list[float] = []
    for number, word in enumerate(words, 2):
        where = f"{file}, line {number}: {word!r} is not a"
        if not task.is_regression:
            if word not in task.labels:
                known = ", ".join(task.labels)
                raise ValueError(f"{where} label of {task.title}; the labels are {known}.")
            values.append(task.labels.index(word))
            continue
        try:
            values.append(float(word))
        except ValueError:
            values.append(math.nan)
        if not math.isfinite(values[-1]):
            raise ValueError(f"{where} score.")
    return np.array(values, np.float32 if task.is_regression else np.int32)
