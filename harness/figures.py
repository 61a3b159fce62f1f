"""How a report's pictures look: colours, a figure that changes no global state, a legend below."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Source: Okabe and Ito 2008, jfly.uni-koeln.de/color, without the yellow that white paper swallows.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#767676"


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
