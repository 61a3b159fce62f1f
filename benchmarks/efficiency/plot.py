"""Picture of the results of `benchmarks.efficiency`, from their JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.efficiency.tables import MIB, figure_of, rows_at, tables
from reporting.plotting import COLORS, GREY, new_figure

BLUE, VERMILION, GREEN, PURPLE, SKY, ORANGE, BLACK = COLORS
STYLES = {
    "softmax": (BLACK, "s"),
    "nystrom-64": (BLUE, "o"),
    "nystrom-32": (SKY, "o"),
    "reformer": (ORANGE, "^"),
    "linformer": (GREEN, "D"),
    "performer": (VERMILION, "v"),
    "longformer": (PURPLE, "P"),
    "linear": (GREY, "X"),
}


def plot(results: Mapping[str, Any], path: Path) -> None:
    """Draws memory and time of the smallest batch against length, on logarithmic axes.

    Markers of programs that do not fit are hollow.
    """
    from matplotlib import ticker

    batch = min(row["batch"] for row in results["rows"])
    kinds = [kind for kind, row_batch in tables(results["rows"]) if row_batch == batch]
    estimate = ", the compiler's estimate" if results["settings"]["topology"] else ""
    panels = (("peak_bytes", "memory, MiB", 1 / MIB), ("time", f"time, ms{estimate}", 1e3))
    figure = new_figure(10, 0.6 + 3.4 * len(kinds))
    grid = figure.subplots(len(kinds), 2, squeeze=False)
    for axes_row, kind in zip(grid, kinds, strict=True):
        rows = rows_at(results["rows"], kind, batch)
        lengths = sorted({length for _, length in rows})
        for axes, (name, label, scale) in zip(axes_row, panels, strict=True):
            for number, attention in enumerate(dict.fromkeys(attention for attention, _ in rows)):
                points = [
                    (length, scale * value, rows[attention, length]["fits"])
                    for length in lengths
                    if (attention, length) in rows
                    and (value := figure_of(rows[attention, length], name))
                ]
                color, marker = STYLES.get(attention, (f"C{number}", "o"))
                style = {"color": color, "marker": marker, "markersize": 5}
                axes.plot(
                    [length for length, _, _ in points],
                    [value for _, value, _ in points],
                    **style,
                    linewidth=2 if attention in ("softmax", "nystrom-64") else 1.2,
                    label=attention,
                )
                hollow = [(length, value) for length, value, fits in points if not fits]
                axes.plot(
                    [length for length, _ in hollow],
                    [value for _, value in hollow],
                    **style | {"markerfacecolor": "white", "linestyle": ""},
                )
            axes.set_xscale("log", base=2)
            axes.set(xlabel="length", ylabel=label, title=f"{kind}, batch {batch}")
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.grid(alpha=0.3)
            if not any(figure_of(row, name) for row in rows.values()):
                continue  # an empty axis cannot be logarithmic
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5), numticks=20))
            axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
            axes.yaxis.set_minor_locator(ticker.NullLocator())
    if not all(row["fits"] for row in results["rows"]):
        grid[0, 0].plot([], [], "s", color="grey", markerfacecolor="white", label="does not fit")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path)
