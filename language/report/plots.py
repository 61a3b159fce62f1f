"""The paper's Figure 5: pretraining against steps."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

LINES = ("-", "--", ":", "-.")  # the next one each time the colors repeat


class Panel(NamedTuple):
    """Title of a metric on its axis, and the factor of its values."""

    title: str
    scale: float


PANELS: Mapping[str, Panel] = {
    "mlm_accuracy": Panel("masked tokens guessed, %", 100),
    "mlm_loss": Panel("cross-entropy, nats per masked token", 1),
    "order_accuracy": Panel("sentence orders guessed, %", 100),
}


def plot_pretraining(groups: Sequence[Group], baselines: Mapping[str, float], path: Path) -> None:
    """Draws validation against steps: a panel for each metric, a line for each model, a band over seeds.

    Source: Xiong et al. 2021, Figure 5.
    Differs: the loss is shown, too.
    """
    columns = 3
    figure = new_figure(12.5, 3.9 + 0.24 * math.ceil((len(groups) + 1) / columns))
    handles: dict[str, Any] = {}
    for axes, (metric, panel) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for number, group in enumerate(groups):
            curve = seeds_together(
                [run.curve(f"valid/{metric}") for run in group.runs], panel.scale
            )
            if curve.steps:
                style: dict[str, Any] = {"linewidth": 1.8, "marker": "o", "markersize": 2.5}
                style["linestyle"] = LINES[number // len(COLORS) % len(LINES)]
                draw_curve(axes, curve.steps, curve, color=COLORS[number % len(COLORS)], **style)
                handles[group.label] = axes.get_lines()[-1]
        if metric in baselines:
            level = panel.scale * baselines[metric]
            handles["without context"] = axes.axhline(
                level, color=GREY, linewidth=1, linestyle="--", zorder=1
            )
        axes.set(xlabel="step", ylabel=panel.title)
        format_steps(axes)
    band = ", band: over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    figure.suptitle(f"Pretraining, on held-out text{band}", fontsize=11)
    add_legend(figure, list(handles.values()), list(handles), columns)
    figure.savefig(path)
