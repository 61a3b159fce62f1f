"""The paper's Figure 5: how masked tokens and sentence orders are learnt, against steps."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.figures import COLORS, GREY, add_legend, new_figure, seeds_together
from language.report.groups import Group

LINES = ("-", "--", ":", "-.")  # one each time the colours begin again


class Panel(NamedTuple):
    """A metric's title on its axis, and what its values are multiplied by."""

    title: str
    scale: float


PANELS: Mapping[str, Panel] = {
    "mlm_accuracy": Panel("masked tokens guessed, %", 100),
    "mlm_loss": Panel("cross-entropy, nats a masked token", 1),
    "order_accuracy": Panel("sentence orders guessed, %", 100),
}


def plot_pretraining(groups: Sequence[Group], baselines: Mapping[str, float], path: Path) -> None:
    """Draws validation against steps, a panel a metric and a line a model; the band is over seeds.

    Source: Xiong et al. 2021, Figure 5. Differs: the loss is there, too.

    Args:
      groups: of pretraining; those whose logs lack a metric are not in its panel.
      baselines: what is scored without context; grey lines.
      path: the PNG.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    columns = 3
    figure = new_figure(12.5, 3.9 + 0.24 * math.ceil((len(groups) + 1) / columns))
    handles = {}
    for axes, (metric, panel) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for number, group in enumerate(groups):
            curves = [run.curve(f"valid/{metric}") for run in group.runs]
            curve = seeds_together(curves, panel.scale)
            style = {
                "color": COLORS[number % len(COLORS)],
                "linestyle": LINES[number // len(COLORS) % len(LINES)],
            }
            if curve.steps:
                (handles[group.label],) = axes.plot(
                    curve.steps, curve.means, linewidth=1.8, marker="o", markersize=2.5, **style
                )
            if curve.lows != curve.highs:
                color = style["color"]
                axes.fill_between(
                    curve.steps, curve.lows, curve.highs, color=color, alpha=0.15, linewidth=0
                )
        if metric in baselines:
            level = panel.scale * baselines[metric]
            handles["without context"] = axes.axhline(
                level, color=GREY, linewidth=1, linestyle="--", zorder=1
            )
        axes.set(xlabel="step", ylabel=panel.title)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    band = ", band: over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    figure.suptitle(f"Pretraining, on held-out text{band}", fontsize=11)
    add_legend(figure, list(handles.values()), list(handles), columns)
    figure.savefig(path)
