"""Figures of reports: curves over seeds, colors and labels, without the global state of matplotlib."""

import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from reporting.runs import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Source: Okabe and Ito 2008, jfly.uni-koeln.de/color, without yellow, which is hard to see on white; then
# four of Paul Tol's muted colors, personal.sron.nl/~pault.
COLORS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000"),
    *("#882255", "#999933", "#332288", "#AA4499"),
)
GREY = "#767676"
LINES = ("-", "--", "-.", ":")
DPI = 110
WIDTH = 7.4  # inches of a figure that is readable in a page of 740 pixels
LABEL_SIZE = 9


def seeds_together(
    curves: Iterable[tuple[Sequence[int], Sequence[float]]], scale: float = 1
) -> pd.DataFrame:
    """Returns the mean, min and max over seeds by step, times `scale`, of (steps, values) of each seed."""
    points = [pd.Series(values, steps, dtype=float) for steps, values in curves]
    return scale * pd.concat(points).groupby(level=0).agg(["mean", "min", "max"])


def metric_over_seeds(
    runs: Iterable[Mapping[str, Any]], metric: str, scale: float = 1
) -> pd.DataFrame:
    """Returns `seeds_together` of a metric in the `metrics.jsonl` of runs, rows of `read_runs`."""
    return seeds_together([curve_of(run["metrics"], metric) for run in runs], scale)


def styles_of(labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns a color and a line style for each label; no two of up to 44 labels have both in common."""
    pairs = itertools.cycle((color, line) for line in LINES for color in COLORS)
    return {
        label: {"color": color, "linestyle": line}
        for label, (color, line) in zip(dict.fromkeys(labels), pairs, strict=False)
    }


def new_figure(width: float, height: float) -> "Figure":
    """Creates a figure; width and height are in inches, see `WIDTH`."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def draw_curve(axes: "Axes", curve: pd.DataFrame, **style: Any) -> None:
    """Draws the mean over seeds as a line and the range as a band, against the steps."""
    axes.plot(curve.index, curve["mean"], **style)
    if not curve["min"].equals(curve["max"]):
        band = (curve.index, curve["min"], curve["max"])
        axes.fill_between(*band, color=style["color"], alpha=0.15, linewidth=0)


def format_steps(axes: "Axes") -> None:
    """Formats the x-axis: ticks at a few round numbers of steps."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def label_lines(axes: "Axes", width: int = 24) -> None:
    """Writes the label of each line beside its rightmost point, in order of height and without overlaps.

    Call it after all lines are drawn and the scales are set. Labels longer than `width` are wrapped.
    """
    axes.spines[["top", "right"]].set_visible(False)
    cast("Figure", axes.figure).draw_without_rendering()  # fixes the height of the axes
    row = 1.35 * LABEL_SIZE * DPI / 72 / axes.get_window_extent().height
    labels = []
    for line in axes.get_lines():
        text = str(line.get_label())
        points = line.get_transform().transform(np.asarray(line.get_xydata()))
        if text.startswith("_") or not len(points):
            continue
        x, y = axes.transAxes.inverted().transform(points[points[:, 0].argmax()])
        text = textwrap.fill(text, width)
        labels.append((float(y), float(x), row * (1 + text.count("\n")), text, line.get_color()))
    labels.sort(key=lambda label: label[0])
    places = _spread([label[0] for label in labels], [label[2] for label in labels])
    for place, (y, x, _, text, color) in zip(places, labels, strict=True):
        axes.annotate(
            text,
            (x, y),
            (1.05, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL_SIZE,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 1, "relpos": (0, 0.5)},
            annotation_clip=False,
        )


def _spread(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Returns places near the `wanted` ones, in ascending order, for labels of these heights.

    Labels that would overlap form a block, which is centered on the mean of its wanted places.
    """
    blocks: list[list[int]] = []

    def center(block: Sequence[int]) -> float:
        return sum(wanted[i] for i in block) / len(block)

    def height(block: Sequence[int]) -> float:
        return sum(heights[i] for i in block)

    for i in range(len(wanted)):
        blocks.append([i])
        while len(blocks) > 1 and (
            center(blocks[-1]) - center(blocks[-2]) < (height(blocks[-1]) + height(blocks[-2])) / 2
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    places = []
    for block in blocks:
        top = center(block) - height(block) / 2
        for i in block:
            places.append(top + heights[i] / 2)
            top += heights[i]
    return places
