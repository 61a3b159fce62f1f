"""Published results on the Long Range Arena, and accuracies of trivial predictors."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nystromformer_jax.support.plugins import short_name

# The five tasks of the mean, with their names in the papers.
COLUMNS: Mapping[str, str] = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder32": "Pathfinder",
}
PATH_X = "pathfinder128"
TITLES: Mapping[str, str] = {**COLUMNS, PATH_X: "Path-X"}
FAILED = "✗"  # accuracy at chance level
CHANCE = 50.0  # accuracy of chance on Path-X, in percent


class Source(NamedTuple):
    """Source of published rows, with a remark on comparability."""

    title: str
    url: str
    remark: str


# Model, test accuracies in percent by task, "mean of 5" and "mean of 6"; unknown values are left out.
Published = Mapping[str, Any]


def with_means(row: Published) -> Published:
    """Adds means that the row does not have; a model that failed on Path-X is at chance in the mean of 6."""
    five = [row[task] for task in COLUMNS if task in row]
    means = {"mean of 5": sum(five) / len(five)} if len(five) == len(COLUMNS) else {}
    if means and PATH_X in row:
        path_x = CHANCE if row[PATH_X] == FAILED else row[PATH_X]
        means["mean of 6"] = (sum(five) + path_x) / (1 + len(five))
    return {**means, **row}


def _rows(*rows: tuple[Any, ...]) -> tuple[Published, ...]:
    names = ("model", *COLUMNS, "mean of 5", PATH_X)  # means as printed in the source
    return tuple(with_means(dict(zip(names, row, strict=False))) for row in rows)


PAPER = Source(
    "Xiong et al. 2021, Table 3",
    "https://arxiv.org/abs/2102.03902",
    "The paper: two layers of width 64, one run. The number of landmarks is not given; the"
    " authors' README names 64.",
)
SKYFORMER = Source(
    "Chen et al. 2021 (Skyformer), Table 1",
    "https://arxiv.org/abs/2111.00035",
    "A rerun: the paper's sizes, 128 landmarks, no convolution, 50,000 steps on every task, mean of"
    " three seeds.",
)
XFORMERS = Source(
    "xFormers, BENCHMARKS.md",
    "https://github.com/facebookresearch/xformers/blob/14f0097d7f11601fb1f4591cbc457cd58ccebaf5/BENCHMARKS.md",
    "A rerun: the paper's sizes, 128 landmarks, ListOps for 10,000 steps.",
)
BOARD = Source(
    "Tay et al. 2021, the official leaderboard",
    "https://github.com/google-research/long-range-arena",
    "Other sizes and budgets, chosen for each task and model; ListOps before its brackets were"
    " fixed. ✗: no better than chance. Sinkhorn's mean is as printed; its row gives 51.48.",
)
MEGA = Source(
    "Ma et al. 2022 (MEGA), Table 2",
    "https://arxiv.org/abs/2209.10655",
    "State-space models and moving averages with larger models and budgets, mean of five seeds for MEGA. The"
    " means of 5 are computed from the rows.",
)

TABLE: Mapping[Source, tuple[Published, ...]] = {
    PAPER: _rows(
        ("Standard", 37.10, 65.02, 79.35, 38.20, 74.16, 58.77),
        ("Reformer", 19.05, 64.88, 78.64, 43.29, 69.36, 55.04),
        ("Linformer", 37.25, 55.91, 79.37, 37.84, 67.60, 55.59),
        ("Performer", 18.80, 63.81, 78.62, 37.07, 69.87, 53.63),
        ("Nyströmformer", 37.15, 65.52, 79.56, 41.58, 70.94, 58.95),
    ),
    SKYFORMER: _rows(("Nyströmformer, rerun", 38.51, 64.83, 80.52, 41.30, 69.48, 58.93)),
    XFORMERS: _rows(("Nyströmformer, rerun", 36.29, 63.24, 78.18, 42.86, 67.49, 57.61)),
    MEGA: _rows(
        ("S4, version 2", 59.60, 86.82, 90.90, 88.65, 94.20, 84.03, 96.35),
        ("MEGA", 63.14, 90.43, 91.25, 90.44, 96.01, 86.25, 97.98),
        ("MEGA-chunk", 58.76, 90.19, 90.97, 85.80, 94.41, 84.03, 93.81),
    ),
    BOARD: _rows(
        ("Transformer", 36.37, 64.27, 57.46, 42.44, 71.40, 54.39, FAILED),
        ("Local", 15.82, 52.98, 53.39, 41.46, 66.63, 46.06, FAILED),
        ("Linear", 16.13, 65.90, 53.09, 42.34, 75.30, 50.55, FAILED),
        ("Reformer", 37.27, 56.10, 53.40, 38.07, 68.50, 50.67, FAILED),
        ("Sparse", 17.07, 63.58, 59.59, 44.24, 71.71, 51.24, FAILED),
        ("Sinkhorn", 33.67, 61.20, 53.83, 41.23, 67.45, 51.29, FAILED),
        ("Linformer", 35.70, 53.94, 52.27, 38.56, 76.34, 51.36, FAILED),
        ("Performer", 18.01, 65.40, 53.82, 42.77, 77.05, 51.41, FAILED),
        ("Synthesizer", 36.99, 61.68, 54.67, 41.61, 69.45, 52.88, FAILED),
        ("Longformer", 35.63, 62.85, 56.89, 42.22, 69.71, 53.46, FAILED),
        ("BigBird", 36.05, 64.02, 59.29, 40.83, 74.87, 55.01, FAILED),
    ),
}

# Accuracies of trivial predictors, for runs whose result does not have them.
# Source: computed on 5,000 trees of the official distribution.
BASELINES: Mapping[str, Mapping[str, float]] = {
    "listops": {"constant answer": 0.176, "first token alone": 0.359},
    "text": {"constant answer": 0.5},
    "retrieval": {"constant answer": 0.5},
    "image": {"constant answer": 0.1},
}


def title_of(task: str) -> str:
    """Returns the name of a task in tables and figures; for `module:name`, the name after the colon."""
    short = short_name(task)
    return TITLES.get(task, task if short in TITLES.values() else short)


def baselines_of(task: str) -> Mapping[str, float]:
    """Returns the accuracies of trivial predictors from `BASELINES`; empty if unknown."""
    return {"constant answer": 0.5} if task.startswith("pathfinder") else BASELINES.get(task, {})
