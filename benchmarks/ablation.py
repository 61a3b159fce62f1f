r"""Table of short runs that each lack one part of a recipe, by their validation accuracy.

    python run_lra.py --config=configs/text.py:nystrom,recipe=fast --config.model.stem="()" --notest \
        --config.train.total_steps=1000 --config.eval.max_examples=1000 --workdir=runs/ablation/text-stem

The rows are those of `python -m lra.report runs/ablation --out …`, whose settings have a validation accuracy.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lra.report.published import title_of
from reporting.statistics import binomial_error
from reporting.tables import NOTHING, format_difference
from reporting.tables import markdown as markdown_table

CHANGES = {
    "": "the whole recipe",
    "model.stem=()": "no convolutions before the first block",
    "conv_kernel_size=0": "no convolution of the values",
    "conv_groups=head": "one convolution kernel per head, not per channel",
    "optimizer.method=adamw": "AdamW, not Muon",
    "model.pooling=mean": "mean pooling, not first, last and mean token",
    "model.token_init=normal": "normal, not Fourier, embeddings of pixels",
    "model.ema_states=0": "no moving averages",
    "model.ema_normalization=mean": "averages normalized to means",
    "model.ema_normalization=variance": "averages with the variance of white noise",
    "none": "no attention",
    "chunked": "softmax attention in chunks of 128 tokens",
    "num_landmarks=16": "16 landmarks",
    "num_landmarks=64": "64 landmarks",
    "num_landmarks=128": "128 landmarks",
}


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a table: changes in rows, tasks in columns; accuracies, and differences from the recipe."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    found = {(row["task"], row["change"]): row for row in rows}
    headings = []
    for task in tasks:
        whole = found[task, ""]
        error = 100 * binomial_error(whole["valid_accuracy"] / 100, whole["examples"])
        headings.append(f"{title_of(task)}, {whole['steps']:,} steps (± {error:.1f})")
    table = []
    for change, description in CHANGES.items():
        cells = [_cell(found.get((task, change)), found[task, ""]) for task in tasks]
        if any(cell != NOTHING for cell in cells):
            option = f"`{change}`" if change else ""
            table.append([description, option, *cells])
    return markdown_table(
        pd.DataFrame(table, columns=["validation accuracy, %", "option", *headings])
    )


def _cell(row: Mapping[str, Any] | None, whole: Mapping[str, Any]) -> str:
    if row is None:
        return NOTHING
    accuracy = f"{row['valid_accuracy']:.1f}"
    if not row["change"]:
        return accuracy
    return f"{accuracy} ({format_difference(row['valid_accuracy'] - whole['valid_accuracy'], 1)})"
