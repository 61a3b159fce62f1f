"""Plots pretraining metrics against steps, as in Figure 5 of the paper."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from language.report.groups import Group
from reporting.plotting import (
    COLORS,
    GREY,
    add_legend,
    draw_curve,
    format_steps,
    new_figure,
    seeds_together,
)

LINES = ("-", "--", ":", "-.")  # next line style each time the colors repeat


# Axis title and scale factor of each metric.
PANELS: Mapping[str, tuple[str, float]] = {
    "mlm_accuracy": ("MLM accuracy, %", 100),
    "mlm_loss": ("MLM loss, nats per token", 1),
    "order_accuracy": ("sentence-order accuracy, %", 100),
}


def plot_pretraining(groups: Sequence[Group], baselines: Mapping[str, float], path: Path) -> None:
    """Plots validation metrics against steps: one panel per metric, one line per model, bands over seeds.

    Source: Xiong et al. 2021, Figure 5.
    Differs: the loss is shown, too.
    """
    columns = 3
    figure = new_figure(12.5, 3.9 + 0.24 * math.ceil((len(groups) + 1) / columns))
    handles: dict[str, Any] = {}
    panels = figure.subplots(1, len(PANELS))
    for axes, (metric, (title, scale)) in zip(panels, PANELS.items(), strict=True):
        for number, group in enumerate(groups):
            curve = seeds_together([run.curve(f"valid/{metric}") for run in group.runs], scale)
            if curve.steps:
                style: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 2.5}
                style["linestyle"] = LINES[number // len(COLORS) % len(LINES)]
                draw_curve(axes, curve.steps, curve, color=COLORS[number % len(COLORS)], **style)
                handles[group.label] = axes.get_lines()[-1]
        if metric in baselines:
            level, style = scale * baselines[metric], {"linewidth": 1, "linestyle": "--"}
            handles["without context"] = axes.axhline(level, color=GREY, zorder=1, **style)
        axes.set(xlabel="step", ylabel=title)
        format_steps(axes)
    band = ", band: over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    figure.suptitle(f"Pretraining, on held-out text{band}", fontsize=11)
    add_legend(figure, list(handles.values()), list(handles), columns)
    figure.savefig(path)
