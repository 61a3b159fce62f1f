"""Figures of the report: learning curves, accuracy against time and against speed."""

import itertools
import math
import statistics
import textwrap
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.report.groups import Group
from lra.report.published import title_of
from reporting.plotting import (
    COLORS,
    DPI,
    GREY,
    Curve,
    add_legend,
    draw_curve,
    format_steps,
    new_figure,
    seeds_together,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection

MAX_POINTS = 250  # per training curve; longer curves are downsampled by averaging
DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 4)))
MAX_AREA, MIN_SHARE = 1100, 0.05  # area of a disc in square points; smallest factor to shrink it by
WIDE = 10  # ratio of training times above which the time axis is logarithmic


def plot_curves(
    groups: Sequence[Group], baselines: Mapping[str, float], colors: Mapping[str, str], path: Path
) -> None:
    """Draws loss and accuracy of the groups of a task against steps: training thin, validation thick.

    A line is the mean over seeds, and the band is the range; if any seed is finished, unfinished seeds are
    omitted. If there are more groups than colors, each has a panel. `baselines` are accuracies in [0, 1].
    """
    title = title_of(groups[0].task)
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
    """Draws a panel per group: accuracies in color, validation accuracies of other groups in light grey."""
    columns = 4
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(2.7 * columns, 0.7 + 2.0 * rows)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel in panels.flat[len(groups) :]:
        panel.set_axis_off()
    for number, (group, panel) in enumerate(zip(groups, panels.flat, strict=False)):
        for other in groups:
            steps, means, *_ = over_seeds(other, "valid/accuracy", 100)
            panel.plot(steps, means, color="#D8D8D8", linewidth=0.8)
        _draw_baselines(panel, baselines)
        _draw(panel, group, "accuracy", 100, COLORS[0], markersize=2)
        panel.set_title(textwrap.fill(group.label, 32), fontsize=9)
        panel.tick_params(labelsize=8, labelbottom=number + columns >= len(groups))
        if number + columns >= len(groups):
            panel.set_xlabel("step", fontsize=8)
    handles, names = panels.flat[0].get_legend_handles_labels()
    add_legend(figure, handles[:-1], names[:-1], columns)
    words = "accuracy, %; thick: validation, thin: training, grey: the others"
    figure.suptitle(f"{title}  ({words})", fontsize=11)
    figure.savefig(path)


def plot_times(
    groups: Sequence[Group], baselines: Mapping[str, float], colors: Mapping[str, str], path: Path
) -> bool:
    """Draws the validation accuracy of the groups of a task against minutes of training.

    Lines, bands and arguments are as in `plot_curves`; groups of the same color have different dashes.
    See `Run.train_minutes` for the definition of the time. Groups without times are omitted.

    Returns:
      True if any group has times; otherwise nothing is drawn.
    """
    timed = {group.label: (group, *over_time(group)) for group in groups}
    timed = {label: found for label, found in timed.items() if found[1]}
    if not timed:
        return False
    devices = {group.devices for group, _, _ in timed.values()}
    width = 8
    figure = new_figure(width, 4.2)
    axes = figure.subplots()
    alike: Counter[str] = Counter()
    for label, (group, minutes, curve) in timed.items():
        color = colors[label]
        dashes = ("-", *DASHES)[alike[color] % (1 + len(DASHES))]
        alike[color] += 1
        name = f"{label}, on {group.devices}" if len(devices) > 1 else label
        style: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": 3, "zorder": 3}
        draw_curve(axes, minutes, curve, color=color, linestyle=dashes, label=name, **style)
    _draw_baselines(axes, baselines)
    ends = [minutes[-1] for _, minutes, _ in timed.values()]
    if max(ends) > WIDE * min(ends):
        axes.set_xscale("log")
        _ticks(axes, [minute for _, minutes, _ in timed.values() for minute in minutes])
    axes.set(xlabel="minutes of training", ylabel="validation accuracy, %")
    device = f", on {devices.pop()}" if len(devices) == 1 and devices != {""} else ""
    figure.suptitle(f"{title_of(groups[0].task)}{device}", fontsize=11)
    handles, names = axes.get_legend_handles_labels()
    names = [textwrap.fill(name, 12 * width) for name in names]  # 12 letters per inch
    columns = max(1, min(3, 12 * width // (8 + max(map(len, names)))))
    rows = math.ceil(len(names) / columns) + sum(name.count("\n") for name in names)
    figure.set_figheight(4.2 + 0.2 * rows)
    add_legend(figure, handles, names, columns)
    figure.savefig(path)
    return True


def over_time(group: Group) -> tuple[list[float], Curve]:
    """Returns training minutes and the curve of validation accuracy in percent, over timed runs."""
    minutes, accuracies = [], []
    for run in group.scored or group.runs:
        steps, own = run.train_minutes
        minutes.append((steps, own))
        accuracies.append((steps, run.curve("valid/accuracy")[1][: len(steps)]))
    return seeds_together(minutes).means, seeds_together(accuracies, 100)


def tradeoffs(groups: Sequence[Group]) -> list[list[Group]]:
    """Returns the groups of each panel: two or more with the same task, budget and device.

    Groups without steady times are omitted; see `Group.is_steady`.
    """
    found: dict[tuple[Hashable, ...], list[Group]] = defaultdict(list)
    for group in groups:
        if group.scored and group.examples_per_second and group.is_steady:
            found[group.devices, *group.budget].append(group)
    return [own for own in found.values() if len(own) > 1]


def plot_tradeoff(groups: Sequence[Group], colors: Mapping[str, str], path: Path) -> None:
    """Draws accuracy against examples per second, a panel per task; disc areas show the peak memory.

    All discs are shrunk by the same factor until none overlap.

    Source: Tay et al. 2021 (arXiv:2011.04006), Figure 3. Differs: training speed, on a logarithmic axis.
    """
    found = tradeoffs(groups)
    columns = min(3, len(found))
    rows = math.ceil(len(found) / columns)
    shown = list(dict.fromkeys(group.label for own in found for group in own))
    legend_columns = columns + 1
    legend_rows = math.ceil(len(shown) / legend_columns)
    figure = new_figure(max(6.5, 4.2 * columns), 3.8 * rows + 0.24 * legend_rows + 0.2)
    panels = figure.subplots(rows, columns, squeeze=False)
    largest = max((group.peak_bytes or 0 for own in found for group in own), default=0)
    numbers = {label: str(number) for number, label in enumerate(shown, 1)}
    numbered = len(shown) > len(COLORS)
    discs: list[_Disc] = []
    for panel in panels.flat[len(found) :]:
        panel.set_axis_off()
    for panel, own in zip(panels.flat, found, strict=False):
        for group in own:
            color = colors[group.label]
            discs.append(_draw_disc(panel, group, color, largest, numbered))
        panel.set_xscale("log")
        panel.margins(0.25)
        _ticks(panel, [group.examples_per_second or 1 for group in own])
        panel.set(xlabel="training examples per second", ylabel="test accuracy, %")
        steps = f", {own[0].progress} steps" if own[0].state == "partial" else ""
        device = f", on {own[0].devices}" if own[0].devices else ""
        title = f"{title_of(own[0].task)}{steps}{device}"
        panel.set_title(textwrap.fill(title, 40), fontsize=10)
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colors[label], marker="o", linestyle="", markersize=8, alpha=0.75)
        for label in shown
    ]
    names = [f"{numbers[label]}  {label}" if numbered else label for label in shown]
    add_legend(figure, handles, names, legend_columns)
    figure.draw_without_rendering()  # computes the positions of the panels
    shrink = _shrink(discs)
    for disc in discs:
        disc.points.set_sizes([shrink * disc.area])
        words = numbers[disc.group.label] if numbered else ""
        _write_beside(disc, shrink * disc.area, words)
    figure.savefig(path)


class _Disc(NamedTuple):
    """Disc of a group in a panel."""

    panel: "Axes"
    group: Group
    points: "PathCollection"
    area: float  # in square points, before scaling

    @property
    def place(self) -> tuple[float, float]:
        """Speed and accuracy: the center of the disc."""
        return self.group.examples_per_second or math.nan, self.group.summary.mean


def _draw_disc(panel: "Axes", group: Group, color: str, largest: int, numbered: bool) -> _Disc:
    """Draws the disc and the error bar of a group."""
    summary = group.summary
    speed = group.examples_per_second or math.nan
    error = group.binomial_error if math.isnan(summary.deviation) else summary.deviation
    area = MAX_AREA * group.peak_bytes / largest if group.peak_bytes else 60
    face = color if group.peak_bytes else "none"
    panel.errorbar(speed, summary.mean, yerr=error, color=color, linewidth=1, capsize=2)
    alpha = 0.35 if numbered else 0.6
    style: dict[str, Any] = {"facecolor": face, "edgecolor": color, "alpha": alpha}
    return _Disc(panel, group, panel.scatter(speed, summary.mean, s=area, **style), area)


def _shrink(discs: Sequence[_Disc]) -> float:
    """Returns the factor, at least MIN_SHARE, by which to shrink the areas so that no discs overlap."""
    share = 1.0
    for one, other in itertools.combinations(discs, 2):
        if one.panel is not other.panel:
            continue
        points = 72 / DPI  # points per pixel
        places = [disc.panel.transData.transform(disc.place) * points for disc in (one, other)]
        radii = (math.sqrt(one.area) + math.sqrt(other.area)) / 2
        share = min(share, (math.dist(*places) / radii) ** 2)
    return max(share, MIN_SHARE)


def _write_beside(disc: _Disc, area: float, number: str) -> None:
    """Writes `number` on the disc or, if it is empty, the peak memory beside the disc."""
    style: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
    if number:
        disc.panel.annotate(number, disc.place, (0, 0), ha="center", **style)
    elif disc.group.peak_bytes:
        words, shift = f"{disc.group.peak_bytes / 2**30:.1f} GiB", math.sqrt(area) / 2 + 4
        disc.panel.annotate(words, disc.place, (shift, 0), color="#404040", **style)


def _ticks(panel: "Axes", speeds: Sequence[float]) -> None:
    """Labels the logarithmic axis with plain numbers, even if it spans less than a decade."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    decades = math.log10(max(speeds) / min(speeds))
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _draw(
    axes: "Axes", group: Group, metric: str, scale: float, color: str, *, markersize: float = 3
) -> None:
    steps, means, *_ = over_seeds(group, f"train/{metric}", scale)
    axes.plot(steps, means, color=color, linewidth=0.8, alpha=0.5, zorder=2)
    curve = over_seeds(group, f"valid/{metric}", scale)
    style: dict[str, Any] = {"linewidth": 2, "marker": "o", "markersize": markersize, "zorder": 3}
    draw_curve(axes, curve.steps, curve, color=color, label=group.label, **style)
    format_steps(axes)


def _draw_baselines(axes: "Axes", baselines: Mapping[str, float]) -> None:
    for number, (name, level) in enumerate(baselines.items()):
        dashes = DASHES[number % len(DASHES)]
        axes.axhline(100 * level, color=GREY, linewidth=1, linestyle=dashes, label=name, zorder=1)


def over_seeds(group: Group, metric: str, scale: float) -> Curve:
    """Returns the curve of a metric over seeds; long training curves are downsampled, without a band."""
    runs = group.scored or group.runs
    curve = seeds_together([run.curve(metric) for run in runs], scale)
    size = math.ceil(len(curve.steps) / MAX_POINTS) if metric.startswith("train/") else 1
    if size <= 1:
        return curve
    pieces = [slice(start, start + size) for start in range(0, len(curve.steps), size)]
    means = [statistics.fmean(curve.means[piece]) for piece in pieces]
    return Curve([curve.steps[piece][-1] for piece in pieces], means, means, means)
