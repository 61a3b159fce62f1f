"""Figures of the report: a bar chart per task, learning curves, recall."""

import math
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.data import mqar
from lra.report.groups import same_inputs
from lra.report.published import title_of
from reporting.plotting import (
    COLORS,
    GREY,
    Curve,
    add_legend,
    draw_curve,
    format_steps,
    new_figure,
    seeds_together,
    styles_of,
)
from reporting.runs import curve_of, minutes_of

MAX_POINTS = 250  # per training curve; longer curves are downsampled by averaging


def plot_bars(bars: Mapping[str, Sequence[tuple[str, float, float]]], path: Path) -> None:
    """Draws a panel per task with a bar per (name, accuracy in percent, standard deviation or NaN)."""
    columns = min(2, len(bars))
    rows = math.ceil(len(bars) / columns)
    figure = new_figure(3.6 * columns + 0.6, 2.4 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel in list(panels)[len(bars) :]:
        panel.set_axis_off()
    colors = {"the paper": COLORS[5], "this code": COLORS[0], "without attention": COLORS[4]}
    for panel, (task, own) in zip(figure.axes, bars.items(), strict=False):
        names = [name for name, _, _ in own]
        values = [value for _, value, _ in own]
        errors = [0 if math.isnan(error) else error for _, _, error in own]
        drawn = panel.barh(names, values, xerr=errors, color=[colors.get(x, GREY) for x in names])
        panel.bar_label(drawn, fmt="%.1f", padding=4, fontsize=8)
        panel.invert_yaxis()
        panel.set(title=title_of(task), xlim=(0, 109))
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("test accuracy, %", fontsize=9)
    figure.savefig(path)


def plot_curves(
    groups: pd.DataFrame, runs: pd.DataFrame, trivial: Mapping[str, float], path: Path
) -> None:
    """Draws accuracy and loss of a task's first groups against steps: training thin, validation thick.

    If the times of these groups can be compared, a third panel has the accuracy against minutes of training.
    A line is the mean over seeds, and the band is the range. `trivial` are accuracies in percent, of which
    the best is drawn.
    """
    scored = groups[groups["n"] > 0]
    shown = (scored if len(scored) else groups)[: len(COLORS)]
    members = {
        group["name"]: runs[
            (runs["task"] == group["task"])
            & (runs["setting"] == group["setting"])
            & runs["seed"].isin(group["seeds"])
        ].to_dict("records")
        for group in shown.to_dict("records")
    }
    styles = styles_of(list(members))
    timed = same_inputs(shown.to_dict("records")) and all(
        run["speed"] for own in members.values() for run in own
    )
    figure = new_figure(5 * (2 + timed), 3.6 + 0.22 * math.ceil((1 + len(members)) / 2))
    panels = figure.subplots(1, 2 + timed)
    for name, own in members.items():
        for panel, metric, scale in zip(panels, ("accuracy", "loss"), (100, 1), strict=False):
            train = _downsampled(
                [curve_of(run["metrics"], f"train/{metric}") for run in own], scale
            )
            panel.plot(train.steps, train.means, **styles[name], linewidth=0.8, alpha=0.5)
            valid = [curve_of(run["metrics"], f"valid/{metric}") for run in own]
            _draw(panel, seeds_together(valid, scale), name, styles)
            format_steps(panel)
            panel.set(xlabel="step")
        if timed:
            curves = [curve_of(run["metrics"], "valid/accuracy") for run in own]
            minutes = [
                minutes_of(run["speed"], steps) for run, (steps, _) in zip(own, curves, strict=True)
            ]
            known = [(s[: len(m)], v[: len(m)]) for m, (s, v) in zip(minutes, curves, strict=True)]
            x = seeds_together((s, m) for (s, _), m in zip(known, minutes, strict=True)).means
            _draw(panels[2], seeds_together(known, 100), name, styles, x)
    for panel in [panels[0], *panels[2:]]:
        if trivial:
            name = max(trivial, key=trivial.__getitem__)
            panel.axhline(trivial[name], color=GREY, linestyle="--", label=name, zorder=1)
    for panel, title in zip(
        panels, ("accuracy, %", "cross-entropy, nats", "validation accuracy, %"), strict=False
    ):
        panel.set_ylabel(title)
    if timed:
        panels[2].set_xlabel(f"minutes of training, {shown.iloc[0]['device']}")
    task = title_of(groups.iloc[0]["task"])
    figure.suptitle(f"{task} (thick: validation, thin: training, band: over seeds)", fontsize=11)
    handles, names = panels[0].get_legend_handles_labels()
    add_legend(figure, handles, [textwrap.fill(name, 40) for name in names], 2 + timed)
    figure.savefig(path)


def plot_recall(groups: pd.DataFrame, path: Path) -> None:
    """Draws the accuracy on MQAR against the number of pairs, a panel per length and a line per attention."""
    lengths = sorted(set(groups["length"]))
    styles = styles_of(sorted(set(groups["name"])))
    figure = new_figure(max(7.5, 5 * len(lengths)), 5)
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for panel, length in zip(panels, lengths, strict=True):
        own = groups[groups["length"] == length]
        sizes = sorted(set(own["pairs"]))
        for name, cells in own.groupby("name"):
            curve = seeds_together(
                ([cell["pairs"]] * cell["n"], list(cell["accuracies"].values()))
                for cell in cells.to_dict("records")
            )
            _draw(panel, curve, str(name), styles)
        trivial = [100 * mqar.most_frequent(size) for size in sizes]
        panel.plot(sizes, trivial, color=GREY, linewidth=1, label="most frequent value")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.minorticks_off()
        panel.set(xlabel="pairs", title=f"MQAR, {length:,} tokens")
    panels[0].set_ylabel("accuracy of the answers, %")
    handles, names = panels[0].get_legend_handles_labels()
    add_legend(figure, handles, names, 3)
    figure.savefig(path)


def _draw(
    axes: Any,
    curve: Curve,
    name: str,
    styles: Mapping[str, Mapping[str, Any]],
    x: Sequence[float] | None = None,
) -> None:
    style: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 3, "zorder": 3}
    draw_curve(axes, curve.steps if x is None else x, curve, label=name, **style, **styles[name])


def _downsampled(curves: Sequence[tuple[Sequence[int], Sequence[float]]], scale: float) -> Curve:
    curve = seeds_together(curves, scale)
    size = max(1, math.ceil(len(curve.steps) / MAX_POINTS))
    pieces = [slice(start, start + size) for start in range(0, len(curve.steps), size)]
    means = [statistics.fmean(curve.means[piece]) for piece in pieces]
    return Curve([curve.steps[piece][-1] for piece in pieces], means, means, means)
