"""Figures of reports: curves over seeds, colors and legends, without the global state of matplotlib."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Source: Okabe and Ito 2008, jfly.uni-koeln.de/color, without yellow, which is hard to see on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#767676"
LINES = ("-", "--", "-.", ":")
DPI = 110


class Curve(NamedTuple):
    """Steps of any seed, with mean, minimum and maximum over the seeds that have a value at the step."""

    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]


def seeds_together(
    curves: Iterable[tuple[Sequence[int], Sequence[float]]], scale: float = 1
) -> Curve:
    """Combines the curves of several seeds into one, with values multiplied by `scale`."""
    values: dict[int, list[float]] = defaultdict(list)
    for steps, own in curves:
        for step, value in zip(steps, own, strict=True):
            values[step].append(scale * value)
    known = sorted(values)
    return Curve(
        known,
        [sum(values[step]) / len(values[step]) for step in known],
        [min(values[step]) for step in known],
        [max(values[step]) for step in known],
    )


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


def draw_curve(axes: "Axes", x: Sequence[float], curve: Curve, **style: Any) -> None:
    """Draws the mean over seeds against `x` as a line, and the range as a band."""
    axes.plot(x, curve.means, **style)
    if curve.lows != curve.highs:
        axes.fill_between(x, curve.lows, curve.highs, color=style["color"], alpha=0.15, linewidth=0)


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
