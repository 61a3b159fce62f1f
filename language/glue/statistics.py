"""Statistics of a task's splits: sizes, labels and lengths."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from language.glue.examples import EncodedSplit, keep
from language.glue.tasks import GlueTask

PERCENTILES = (5, 50, 95)


def of_tokens(split: EncodedSplit, task: GlueTask, max_len: int) -> dict[str, Any]:
    """Returns `of_lengths` of a split in tokens, and "truncated", the share of truncated examples."""
    lengths = split.lengths.sum(axis=1) + 1 + split.lengths.shape[1]
    truncated = (keep(split.lengths, max_len) < split.lengths).any(axis=1)
    return {**of_lengths(lengths, split.labels, task), "truncated": float(truncated.mean())}


def of_lengths(
    lengths: npt.NDArray[np.integer], labels: npt.NDArray[Any] | None, task: GlueTask
) -> dict[str, Any]:
    """Returns the statistics of a split.

    Args:
      lengths: [N], length of each example.
      labels: [N], or None.
      task: The task.

    Returns:
      examples: N.
      labels: Share of each label by name, or "mean" and "deviation" of scores; None without labels.
      length: Percentiles, and "longest".
    """
    shares: dict[str, float] | None = None
    if labels is not None and task.is_regression:
        scores = labels.astype(np.float64)
        shares = {"mean": float(scores.mean()), "deviation": float(scores.std())}
    elif labels is not None:
        counts = np.bincount(labels, minlength=len(task.labels))
        shares = dict(zip(task.labels, (counts / len(labels)).tolist(), strict=True))
    percentiles = {f"{p} %": round(float(np.percentile(lengths, p))) for p in PERCENTILES}
    return {
        "examples": len(lengths),
        "labels": shares,
        "length": {**percentiles, "longest": int(lengths.max())},
    }


def markdown(
    task: GlueTask,
    splits: Mapping[str, Mapping[str, Any]],
    notes: Mapping[str, Any],
    max_len: int | None = None,
) -> str:
    """Returns a table of the splits.

    Args:
      task: The task.
      splits: Statistics of each split: `of_tokens`, or `of_lengths` in words.
      notes: See `GlueData`.
      max_len: Length at which examples are truncated; None: lengths are in words.
    """
    unit = "words" if max_len is None else "tokens"
    lengths = ", ".join(f"{p} %" for p in PERCENTILES)
    cut = "" if max_len is None else f" truncated at {max_len} |"
    labels = "scores" if task.is_regression else ", ".join(task.labels)
    rows = [
        f"| {task.title} | examples | different | {labels} | {unit}: {lengths}, longest |{cut}",
        f"|---|---|---|---|---|{'---|' if cut else ''}",
    ]
    for name, found in splits.items():
        share = f" {100 * found['truncated']:.2f} % |" if cut else ""
        rows.append(
            f"| {name} | {found['examples']:,} | {notes['different'][name]:,}"
            f" | {_labels(found['labels'])}"
            f" | {', '.join(f'{length:,}' for length in found['length'].values())} |{share}"
        )
    shared = ", ".join(f"{name} {count:,}" for name, count in notes["shared"].items())
    rows += ["", f"Different examples that two splits share, labels aside: {shared}."]
    for name, lines in notes["left_out"].items():
        rows += ["", f"Torn or empty rows skipped in {name}: {len(lines):,}."]
    return "\n".join(rows) + "\n"


def _labels(shares: Mapping[str, float] | None) -> str:
    if shares is None:
        return "none"
    if "deviation" in shares:
        return f"{shares['mean']:.2f} ± {shares['deviation']:.2f}"
    return ", ".join(f"{100 * share:.1f} %" for share in shares.values())
