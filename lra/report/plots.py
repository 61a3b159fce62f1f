"""Figures of the report: a bar chart per task, learning curves, recall."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lra.data import mqar
from lra.report.published import title_of
from reporting.plotting import (
    COLORS,
    GREY,
    WIDTH,
    draw_curve,
    format_steps,
    label_lines,
    metric_over_seeds,
    new_figure,
    seeds_together,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colors of the bars, in their order.
BARS = {
    "the paper": COLORS[5],
    "this code": COLORS[0],
    "without attention": COLORS[4],
    "trivial predictor": GREY,
}
# Style of a line that is a result.
THICK: Mapping[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 3, "zorder": 3}
MAX_POINTS = 250  # per training curve; longer curves are downsampled by averaging


def plot_bars(best: pd.DataFrame) -> "Figure":
    """Draws a panel per task of a `page.best_recipe`, with a bar per accuracy."""
    columns = min(2, len(best))
    rows = math.ceil(len(best) / columns)
    figure = new_figure(3.6 * columns + 0.6, 2.4 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel in list(panels)[len(best) :]:
        panel.set_axis_off()
    for panel, row in zip(figure.axes, best.to_dict("records"), strict=False):
        names = [name for name in BARS if not math.isnan(row[name])]
        deviations = {
            "this code": row["deviation"],
            "without attention": row["deviation without"],
        }
        drawn = panel.barh(
            names,
            [row[name] for name in names],
            xerr=np.nan_to_num([deviations.get(name, 0) for name in names]),
            color=[BARS[name] for name in names],
        )
        panel.bar_label(drawn, fmt="%.1f", padding=4, fontsize=8)
        panel.invert_yaxis()
        panel.set(title=title_of(row["task"]), xlim=(0, 109))
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("test accuracy, %", fontsize=9)
    return figure


def plot_curves(groups: pd.DataFrame, trivial: Mapping[str, float]) -> "Figure":
    """Draws accuracy and loss of a task's first groups against steps, in training and validation.

    A line is the mean over seeds, and the band is the range. `trivial` are accuracies in percent, of which
    the best is drawn.
    """
    scored = groups[groups["n"] > 0]
    shown = (scored if len(scored) else groups)[: len(COLORS)].to_dict("records")
    members = {group["name"]: group["members"] for group in shown}
    styles = styles_of(list(members))
    figure = new_figure(WIDTH, 5.4)
    grid = figure.subplots(2, 2, sharex="row", sharey="row")
    for name, own in members.items():
        for panels, metric, scale in zip(grid, ("accuracy", "loss"), (100, 1), strict=True):
            train, valid = (
                metric_over_seeds(own, f"{split}/{metric}", scale) for split in ("train", "valid")
            )
            panels[0].plot(*_downsampled(train["mean"]), **styles[name], linewidth=1)
            draw_curve(panels[1], valid, **THICK, **styles[name], label=name)
    if trivial:
        name = max(trivial, key=trivial.__getitem__)
        grid[0, 1].axhline(trivial[name], color=GREY, linestyle="--", label=name, zorder=1)
    for panels, title in zip(grid, ("accuracy, %", "cross-entropy, nats"), strict=True):
        panels[0].set_ylabel(title)
        for panel, split in zip(panels, ("training", "validation"), strict=True):
            panel.set_title(split, fontsize=10)
            format_steps(panel)
    for panel in grid[1]:
        panel.set_xlabel("step")
    task = title_of(shown[0]["task"])
    several = any(len(own) > 1 for own in members.values())
    figure.suptitle(f"{task}{': means and ranges over seeds' if several else ''}", fontsize=11)
    for panel in grid[:, 1]:
        label_lines(panel)
    return figure


def plot_recall(groups: pd.DataFrame) -> "Figure":
    """Draws the accuracy on MQAR against the number of pairs, a panel per length and a line per attention."""
    lengths = sorted(set(groups["length"]))
    styles = styles_of(sorted(set(groups["name"])))
    figure = new_figure(WIDTH, 4.2 * len(lengths))
    panels = figure.subplots(len(lengths), 1, squeeze=False)[:, 0]
    for panel, length in zip(panels, lengths, strict=True):
        own = groups[groups["length"] == length]
        sizes = sorted(set(own["pairs"]))
        for name, cells in own.groupby("name"):
            curve = seeds_together(
                ([cell["pairs"]] * cell["n"], list(cell["accuracies"].values()))
                for cell in cells.to_dict("records")
            )
            draw_curve(panel, curve, **THICK, **styles[str(name)], label=name)
        trivial = [100 * mqar.most_frequent(size) for size in sizes]
        panel.plot(sizes, trivial, color=GREY, linewidth=1, label="most frequent value")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set(xlabel="pairs", title=f"MQAR, {length:,} tokens")
        panel.set_ylabel("accuracy of the answers, %")
    for panel in panels:
        label_lines(panel, 34)
    return figure


def _downsampled(curve: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Returns the last step and the mean value of pieces of a curve, at most `MAX_POINTS`."""
    pieces = np.arange(len(curve)) // max(1, math.ceil(len(curve) / MAX_POINTS))
    return curve.index.to_series().groupby(pieces).last(), curve.groupby(pieces).mean()
