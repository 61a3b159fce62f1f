"""The report on language models as Markdown, with the picture of pretraining."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from language.report import tables
from language.report.published import REMARK, SOURCE, URL
from reporting.plotting import (
    GREY,
    WIDTH,
    draw_curve,
    format_steps,
    label_lines,
    metric_over_seeds,
    new_figure,
    styles_of,
)
from reporting.tables import markdown
from reporting.writer import bullets, join, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Scale factor of each metric.
PANELS: Mapping[str, float] = {"mlm_accuracy": 100, "mlm_loss": 1, "order_accuracy": 100}


def make(runs: pd.DataFrame, left_out: Sequence[str], path: Path) -> dict[str, str]:
    """Draws the picture and returns the texts of the report, see `reporting.writer.main`."""
    groups = tables.group(runs)
    parts = ["# Language model: results"]
    pretraining = groups[groups["task"] == ""]
    if len(gains := tables.gains_table(groups)):
        words = [
            f"{row['task']} {row['difference ± s.e.']} ({row['model']})"
            for row in gains.to_dict("records")
        ]
        parts.append(
            "Pretraining changes the accuracy after the same fine-tuning by these points, with standard"
            f" errors: {', '.join(words)}."
        )
    if len(table_2 := tables.table_2(groups)):
        parts += [
            "## Fine-tuning compared with the paper",
            "Scores in percent on the validation set (IMDb: on the test set, which has labels), at the step"
            " with the best validation score. Ours are the mean ± standard deviation over n seeds, or for"
            " one seed the standard error over examples (s.e.). If several settings were run, the one that"
            " is best on validation is shown, as in the paper. This makes the score slightly too high.",
            markdown(table_2),
            f"[{SOURCE}]({URL}). {REMARK}",
        ]
    if len(gains):
        parts += [
            "## Gains of pretraining",
            "Accuracy after the same fine-tuning, from the checkpoint and from scratch, even for tasks with"
            " another main metric. The means are over the seeds that both settings share. The error is the"
            " standard error of the paired difference over examples.",
            markdown(gains),
        ]
    if len(pretraining):
        description = "Masked tokens, loss and sentence orders on held-out text against steps."
        parts += [
            "## Pretraining",
            "Metrics on held-out text, at the step with the smallest loss: mean ± standard deviation over"
            " seeds.",
            markdown(tables.pretraining_table(pretraining)),
            picture(path, "pretraining", plot_pretraining(pretraining), description),
        ]
    parts += [
        "## How it was measured",
        f"`{path.name}.runs.csv` has the metrics, command, config, hashes and versions of every run.",
        bullets(dict.fromkeys(filter(None, runs["versions"]))),
        *(["Left out:", bullets(left_out)] if left_out else []),
    ]
    return {"md": join(parts)}


def plot_pretraining(groups: pd.DataFrame) -> "Figure":
    """Plots validation metrics against steps: one panel per metric, one line per model, bands over seeds.

    Source: Xiong et al. 2021, Figure 5.
    Differs: the loss is shown, too.
    """
    known = tables.baselines(groups)
    styles = styles_of(list(groups["name"]))
    figure = new_figure(WIDTH, 2.6 * len(PANELS))
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (metric, scale) in zip(panels, PANELS.items(), strict=True):
        for own in groups.to_dict("records"):
            curve = metric_over_seeds(own["runs"], f"valid/{metric}", scale)
            if len(curve):
                style = {**styles[own["name"]], "linewidth": 1.8, "marker": "o", "markersize": 2.5}
                draw_curve(axes, curve, **style, label=own["name"])
        if metric in known:
            level = scale * known[metric]
            axes.axhline(level, color=GREY, linestyle="--", label="without context", zorder=1)
        axes.set_title(tables.TITLES[metric], fontsize=10)
        format_steps(axes)
    panels[-1].set_xlabel("step")
    figure.suptitle("Pretraining: held-out text, means and ranges over seeds", fontsize=11)
    for axes in panels:
        label_lines(axes)
    return figure
