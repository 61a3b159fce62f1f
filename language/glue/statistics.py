"""What a task's data are like: sizes, labels, lengths, what its splits have in common."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from language.glue.examples import EncodedSplit, keep
from language.glue.tasks import GlueTask

PERCENTILES = (5, 50, 95)


def of_split(split: EncodedSplit, task: GlueTask, max_len: int) -> dict[str, Any]:
    """A split in numbers.

    Returns:
      examples: rows.
      labels: the share of each, by name; of scores the "mean" and the "deviation"; None without labels.
      length: percentiles of the tokens of a whole example, special ones included, and the "longest".
      truncated: the share of examples that lose tokens at `max_len`.
    """
    lengths = split.lengths.sum(axis=1) + 1 + split.lengths.shape[1]
    cut = (keep(split.lengths, max_len) < split.lengths).any(axis=1)
    return {
        "examples": len(split),
        "labels": None if split.labels is None else of_labels(split.labels, task),
        "length": of_lengths(lengths),
        "truncated": float(cut.mean()),
    }


def of_labels(labels: npt.NDArray[Any], task: GlueTask) -> dict[str, float]:
    """The share of each label, or the scores' mean and standard deviation."""
    if task.is_regression:
        scores = labels.astype(np.float64)
        return {"mean": float(scores.mean()), "deviation": float(scores.std())}
    shares = np.bincount(labels, minlength=len(task.labels)) / len(labels)
    return dict(zip(task.labels, shares.tolist(), strict=True))


def of_lengths(lengths: npt.NDArray[np.integer]) -> dict[str, int]:
    """Percentiles and the maximum."""
    found = {f"{p} %": round(float(np.percentile(lengths, p))) for p in PERCENTILES}
    return {**found, "longest": int(lengths.max())}


def markdown(task: GlueTask, statistics: Mapping[str, Any], unit: str = "tokens") -> str:
    """A table of the splits, and what they share; for people.

    Args:
      task: whose data they are.
      statistics: `GlueData.statistics`, or the like.
      unit: what lengths are counted in.
    """
    lengths = ", ".join(f"{p} %" for p in PERCENTILES)
    cut = f" cut at {statistics['max_len']} |" if "max_len" in statistics else ""
    labels = "scores" if task.is_regression else ", ".join(task.labels)
    rows = [
        f"| {task.title} | examples | different | {labels} | {unit}: {lengths}, longest |{cut}",
        f"|---|---|---|---|---|{'---|' if cut else ''}",
    ]
    for name, found in statistics["splits"].items():
        share = f" {100 * found['truncated']:.2f} % |" if cut else ""
        rows.append(
            f"| {name} | {found['examples']:,} | {statistics['different'][name]:,}"
            f" | {_labels(found['labels'])}"
            f" | {', '.join(f'{length:,}' for length in found['length'].values())} |{share}"
        )
    shared = ", ".join(f"{name} {count:,}" for name, count in statistics["shared"].items())
    rows += ["", f"Different examples that two splits share, labels aside: {shared}."]
    for name, lines in statistics["left_out"].items():
        rows += ["", f"Torn or empty rows left out of {name}: {len(lines):,}."]
    return "\n".join(rows) + "\n"


def _labels(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "none"
    if "deviation" in found:
        return f"{found['mean']:.2f} ± {found['deviation']:.2f}"
    return ", ".join(f"{100 * share:.1f} %" for share in found.values())
