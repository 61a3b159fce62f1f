"""Reads and writes predictions in the submission format of GLUE."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from language.glue.tasks import MAX_SCORE, GlueTask
from nystromformer_jax.durable import write_bytes


class Predictions(NamedTuple):
    """Content of a predictions file."""

    ids: npt.NDArray[np.str_]  # [N]
    predictions: npt.NDArray[Any]  # [N], classes or scores
    labels: npt.NDArray[Any] | None  # [N], or None in a submission


def file_name(task: GlueTask, split: str) -> str:
    """Returns the file name required by the GLUE server, or `<task>-<split>.tsv` for other splits."""
    return task.submissions.get(split, f"{task.name}-{split}.tsv")


def write_predictions(
    task: GlueTask,
    split: str,
    ids: npt.NDArray[np.str_],
    predicted: npt.NDArray[Any],
    folder: Path,
    *,
    labels: npt.NDArray[Any] | None = None,
) -> Path:
    """Writes the columns `index`, `prediction` and, with labels, `label`; returns the path.

    Classes are written by name. Without labels, scores are clipped to the valid range. With labels they are
    not, so that metrics can be computed from the file. The file is replaced atomically; `folder` is created
    if missing. `ids`, `predicted` (classes or scores) and `labels` are [N].
    """
    if task.is_regression and labels is None:
        predicted = predicted.clip(0, MAX_SCORE)
    columns = [["index", *ids.tolist()], ["prediction", *_format(task, predicted)]]
    if labels is not None:
        columns.append(["label", *_format(task, labels)])
    rows = zip(*columns, strict=True)
    file = folder / file_name(task, split)
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(file, "".join("\t".join(row) + "\n" for row in rows).encode())
    return file


def read_predictions(task: GlueTask, file: Path) -> Predictions:
    """Reads a file written by `write_predictions`; raises ValueError if it is invalid."""
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


def _format(task: GlueTask, values: npt.NDArray[Any]) -> list[str]:
    """Returns class names, or scores with enough digits to restore float32 exactly."""
    return [f"{x:.9g}" if task.is_regression else task.labels[x] for x in values.tolist()]


def _parse(task: GlueTask, words: Sequence[str], file: Path) -> npt.NDArray[Any]:
    values = [task.parse_label(word) for word in words]
    if None in values:
        row = values.index(None)
        needed = f"label of {task.title}; the labels are {', '.join(task.labels)}"
        if task.is_regression:
            needed = "score"
        raise ValueError(f"{file}, line {row + 2}: {words[row]!r} is not a {needed}.")
    return np.array(values, np.float32 if task.is_regression else np.int32)
