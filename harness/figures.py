"""A report's pictures: curves over seeds, colours, figures that change no global state, legends below."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Source: Okabe and Ito 2008, jfly.uni-koeln.de/color, without the yellow that white paper swallows.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#767676"


class Curve(NamedTuple):
    """Steps that any seed has; there the mean, the lowest and the highest of those that have them."""

    steps: list[int]
    means: list[float]
    lows: list[float]
    highs: list[float]


def curve_of(metrics: Iterable[Mapping[str, float]], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values of one metric, from the lines of a `metrics.jsonl`."""
    points = [(int(line["step"]), line[metric]) for line in metrics if metric in line]
    return [step for step, _ in points], [value for _, value in points]


def seeds_together(
    curves: Iterable[tuple[Sequence[int], Sequence[float]]], scale: float = 1
) -> Curve:
    """One curve of those of several seeds, its values times `scale`."""
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


def colors_of(labels: Sequence[str]) -> dict[str, str]:
    """A colour for each label, in their order; from the eighth on they repeat."""
    return {label: COLORS[number % len(COLORS)] for number, label in enumerate(labels)}


def new_figure(width: float, height: float) -> "Figure":
    """A figure of its own, which changes nothing of matplotlib's state; inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def add_legend(
    figure: "Figure", handles: Sequence[Any], names: Sequence[str], columns: int
) -> None:
    """Below the axes, where it covers no line; takes the frames' upper and right sides away, too."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    if handles:
        figure.legend(
            handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
