"""The report's pictures: learning curves, and accuracy against speed, as PNG."""

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.figures import COLORS, GREY, Curve, add_legend, new_figure, seeds_together
from lra.report.groups import Group
from lra.report.published import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 250  # of a training curve; more are averaged in pieces
DASHES = ("--", ":", "-.")


def plot_curves(
    groups: Sequence[Group], baselines: Mapping[str, float], colors: Mapping[str, str], path: Path
) -> None:
    """Draws loss and accuracy of one task's groups against steps: training thin, validation thick.

    The line is the mean over seeds, the band goes from the lowest to the highest; where a seed has
    finished, those that have not are left out. More groups than there are colours get a panel each.

    Args:
      groups: of one task.
      baselines: accuracies of trivial predictors, in [0, 1]; grey lines.
      colors: by label.
      path: the PNG.
    """
    title = TITLES.get(groups[0].task, groups[0].task)
    if len(groups) > len(COLORS):
        _plot_panels(groups, baselines, title, path)
        return
    columns = 3
    legend_rows = math.ceil((len(groups) + len(baselines)) / columns)
    figure = new_figure(10, 3.9 + 0.22 * legend_rows)
    losses, accuracies = figure.subplots(1, 2)
    for group in groups:
        _draw(losses, group, "loss", 1, colors[group.label])
        _draw(accuracies, group, "accuracy", 100, colors[group.label])
    _draw_baselines(accuracies, baselines)
    losses.set(xlabel="step", ylabel="cross-entropy, nats")
    accuracies.set(xlabel="step", ylabel="accuracy, %")
    band = ", band: over seeds" if any(len(group.scored) > 1 for group in groups) else ""
    figure.suptitle(f"{title}  (thick: validation, thin: training{band})", fontsize=11)
    handles, names = accuracies.get_legend_handles_labels()
    add_legend(figure, handles, names, columns)
    figure.savefig(path)


def _plot_panels(
    groups: Sequence[Group], baselines: Mapping[str, float], title: str, path: Path
) -> None:
    """A panel for each group: its accuracy in colour, the others' validation in light grey."""
    columns = 4
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(2.7 * columns, 0.7 + 2.0 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(groups) :]:
        panel.set_axis_off()
    for number, (group, panel) in enumerate(zip(groups, panels.flat, strict=False)):
        for other in groups:
            panel.plot(
                *over_seeds(other, "valid/accuracy", 100)[:2], color="#D8D8D8", linewidth=0.8
            )
        _draw_baselines(panel, baselines)
        _draw(panel, group, "accuracy", 100, COLORS[0], markersize=2)
        panel.set_title(group.label, fontsize=9, wrap=True)
        panel.tick_params(labelsize=8, labelbottom=number + columns >= len(groups))
        if number + columns >= len(groups):
            panel.set_xlabel("step", fontsize=8)
    handles, names = panels.flat[0].get_legend_handles_labels()
    add_legend(figure, handles[:-1], names[:-1], columns)
    words = "accuracy, %; thick: validation, thin: training, grey: the others"
    figure.suptitle(f"{title}  ({words})", fontsize=11)
    figure.savefig(path)


def tradeoffs(groups: Sequence[Group]) -> list[list[Group]]:
    """The groups that a panel can compare: two or more of one task and budget, timed on one device."""
    found: dict[tuple[Hashable, ...], list[Group]] = defaultdict(list)
    for group in groups:
        if group.scored and group.examples_per_second:
            found[group.devices, *group.budget].append(group)
    return [own for own in found.values() if len(own) > 1]


def plot_tradeoff(groups: Sequence[Group], colors: Mapping[str, str], path: Path) -> None:
    """Draws accuracy against examples per second, a panel a task; a disc's area is the peak memory.

    Source: Tay et al. 2021 (arXiv:2011.04006), Figure 3. Differs: speed is logarithmic and of training.
    """
    found = tradeoffs(groups)
    columns = min(3, len(found))
    rows = math.ceil(len(found) / columns)
    shown = list(dict.fromkeys(group.label for own in found for group in own))
    legend_columns = columns + 1
    legend_rows = math.ceil(len(shown) / legend_columns)
    figure = new_figure(max(6.5, 4.2 * columns), 3.5 * rows + 0.24 * legend_rows + 0.2)
    panels = figure.subplots(rows, columns, squeeze=False)
    largest = max((group.peak_bytes or 0 for own in found for group in own), default=0)
    numbers = {label: str(number) for number, label in enumerate(shown, 1)}
    numbered = len(shown) > len(COLORS)
    for panel in panels.flat[len(found) :]:
        panel.set_axis_off()
    for panel, own in zip(panels.flat, found, strict=False):
        # Large discs first, so that small ones stay in sight.
        for group in sorted(own, key=lambda group: -(group.peak_bytes or 0)):
            _draw_disc(panel, group, colors[group.label], largest, numbers[group.label], numbered)
        panel.set_xscale("log")
        panel.margins(0.25)
        _ticks(panel, [group.examples_per_second or 1 for group in own])
        panel.set(xlabel="training examples a second", ylabel="test accuracy, %")
        panel.set_title(_panel_title(own[0]), fontsize=10)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colors[label], marker="o", linestyle="", markersize=8, alpha=0.75)
        for label in shown
    ]
    names = [f"{numbers[label]}  {label}" if numbered else label for label in shown]
    add_legend(figure, handles, names, legend_columns)
    figure.savefig(path)


def _panel_title(group: Group) -> str:
    steps = f", {group.progress} steps" if group.state == "partial" else ""
    device = f", on {group.devices}" if group.devices else ""
    return f"{TITLES.get(group.task, group.task)}{steps}{device}"


def _draw_disc(
    panel: "Axes", group: Group, color: str, largest: int, number: str, numbered: bool
) -> None:
    """One group: its disc, its error bar, and its memory in words."""
    summary = group.summary
    speed = group.examples_per_second or math.nan
    error = group.binomial_error if math.isnan(summary.deviation) else summary.deviation
    area = 1100 * group.peak_bytes / largest if group.peak_bytes else 60
    face = color if group.peak_bytes else "none"
    panel.errorbar(speed, summary.mean, yerr=error, color=color, linewidth=1, capsize=2)
    panel.scatter(
        speed,
        summary.mean,
        s=area,
        facecolor=face,
        edgecolor=color,
        alpha=0.35 if numbered else 0.6,
    )
    if numbered:
        panel.text(speed, summary.mean, number, ha="center", va="center", fontsize=8)
    elif group.peak_bytes:
        panel.annotate(
            f"{group.peak_bytes / 2**30:.1f} GiB",
            (speed, summary.mean),
            (math.sqrt(area) / 2 + 4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color="#404040",
        )


def _ticks(panel: "Axes", speeds: Sequence[float]) -> None:
    """Plain numbers on the logarithmic axis, also where it spans less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    decades = math.log10(max(speeds) / min(speeds))
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _draw(
    axes: "Axes", group: Group, metric: str, scale: float, color: str, *, markersize: float = 3
) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    steps, means, lows, highs = over_seeds(group, f"train/{metric}", scale)
    axes.plot(steps, means, color=color, linewidth=0.8, alpha=0.5, zorder=2)
    steps, means, lows, highs = over_seeds(group, f"valid/{metric}", scale)
    style: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": markersize, "zorder": 3}
    axes.plot(steps, means, color=color, label=group.label, **style)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    if lows != highs:
        axes.fill_between(steps, lows, highs, color=color, alpha=0.15, linewidth=0)


def _draw_baselines(axes: "Axes", baselines: Mapping[str, float]) -> None:
    for number, (name, level) in enumerate(baselines.items()):
        dashes = DASHES[number % len(DASHES)]
        axes.axhline(100 * level, color=GREY, linewidth=1, linestyle=dashes, label=name, zorder=1)


def over_seeds(group: Group, metric: str, scale: float) -> Curve:
    """A group's curve; a long one of training is averaged in pieces, and has no band."""
    runs = group.scored or group.runs
    curve = seeds_together([run.curve(metric) for run in runs], scale)
    size = math.ceil(len(curve.steps) / MAX_POINTS) if metric.startswith("train/") else 1
    if size <= 1:
        return curve
    pieces = [slice(start, start + size) for start in range(0, len(curve.steps), size)]
    means = [statistics.fmean(curve.means[piece]) for piece in pieces]
    return Curve([curve.steps[piece][-1] for piece in pieces], means, means, means)
