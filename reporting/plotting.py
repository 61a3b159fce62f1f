"""Figures of reports: curves over seeds, colors and legends, without the global state of matplotlib."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from reporting.runs import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Source: Okabe and Ito 2008, jfly.uni-koeln.de/color, without yellow, which is hard to see on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#767676"
LINES = ("-", "--", "-.", ":")
DPI = 110


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
    """Returns a color and a line style for each label; no two of up to 28 labels have both in common."""
    pairs = itertools.cycle((color, line) for line in LINES for color in COLORS)
    return {
        label: {"color": color, "linestyle": line}
        for label, (color, line) in zip(dict.fromkeys(labels), pairs, strict=False)
    }


def new_figure(width: float, height: float) -> "Figure":
    """Creates a figure; width and height are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def draw_curve(
    axes: "Axes", curve: pd.DataFrame, x: Sequence[float] | None = None, **style: Any
) -> None:
    """Draws the mean over seeds as a line and the range as a band, against `x`, by default the steps."""
    x = curve.index if x is None else x
    axes.plot(x, curve["mean"], **style)
    if not curve["min"].equals(curve["max"]):
        axes.fill_between(
            x, curve["min"], curve["max"], color=style["color"], alpha=0.15, linewidth=0
        )


def format_steps(axes: "Axes") -> None:
    """Formats the x-axis: ticks at a few round numbers of steps."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def add_legend(
    figure: "Figure", handles: Sequence[Any], names: Sequence[str], columns: int
) -> None:
    """Adds a legend below all axes and removes the upper and right spines."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
