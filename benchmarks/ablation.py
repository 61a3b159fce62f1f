r"""Compares short runs that each lack one part of a recipe, by their validation accuracy.

    python run_lra.py --config=configs/text.py:nystrom,recipe=fast --config.model.stem="()" --notest \
        --config.train.total_steps=1000 --config.eval.max_examples=1000 --workdir=runs/ablation/text-stem
    python -m benchmarks.ablation runs/ablation --out results/ablation.json

Each run is a row. Its name is the option that the other runs of its task do not have.
"""

import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from command import parser_of, run_to_end
from lra.report.groups import task_rank
from lra.report.labels import affecting_results
from lra.report.published import title_of
from lra.report.results import Run, find_runs
from nystromformer_jax.durable import write_json
from nystromformer_jax.spelling import split_commas
from reporting.statistics import binomial_error
from reporting.tables import NOTHING, markdown_table
from reporting.writer import path_argument

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


def rows_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns a row per run: task, change, validation accuracy in percent, and how it was measured.

    Raises:
      ValueError: A run is unfinished or uses all validation examples, its change is not in `CHANGES`, the
        runs of a task differ in more than the change, or none has the whole recipe.
    """
    rows: list[dict[str, Any]] = []
    for run in runs:
        changes = _changes(run, [other for other in runs if other.task == run.task])
        if run.state == "diverged":
            raise ValueError(f"{run.folder} diverged at step {run.diverged_step}: remove the run.")
        if run.valid_accuracy is None:
            raise ValueError(f"{run.folder} is not finished: resume it with the same command.")
        if not run.config["eval"]["max_examples"]:
            raise ValueError(
                f"{run.folder} needs --config.eval.max_examples=1000, a short validation."
            )
        if changes not in CHANGES:
            raise ValueError(f"{run.folder} differs from the recipe in {changes}: remove the run.")
        rows.append(
            {
                "task": run.task,
                "recipe": next((x for x in _options(run) if x.startswith("recipe=")), ""),
                "change": changes,
                "valid_accuracy": 100 * run.valid_accuracy,
                "examples": run.config["eval"]["max_examples"],
                "steps": run.done_steps,
                "seed": run.seed,
                "device": run.device,
                "versions": dict(run.versions),
                "config_sha256": run.config_sha256,
                "data_sha256": run.data_sha256,
            }
        )
    for task in {run.task for run in runs}:
        own = [row for row in rows if row["task"] == task]
        if not any(not row["change"] for row in own):
            raise ValueError(f"{task} has no run of the whole recipe: add one.")
        for key in ("recipe", "steps", "examples", "seed"):
            if len({row[key] for row in own}) > 1:
                raise ValueError(f"The runs of {task} differ in {key}: keep those with one value.")
        if len({row["change"] for row in own}) < len(own):
            raise ValueError(f"{task} has two runs with the same options: remove one.")
    order = list(CHANGES)
    return sorted(rows, key=lambda row: (task_rank(row["task"]), order.index(row["change"])))


def _changes(run: Run, peers: Sequence[Run]) -> str:
    """Returns the options of a run, and its flags that not all runs of the task have with this value."""
    shared = set.intersection(*(set(_flags(other)) for other in peers))
    flags = [f"{key}={value}" for key, value in _flags(run) if (key, value) not in shared]
    options = [x for x in _options(run) if x != "nystrom" and not x.startswith("recipe=")]
    return ", ".join([*options, *flags])


def _flags(run: Run) -> Collection[tuple[str, Hashable]]:
    return affecting_results(run.overrides or {}).items()


def _options(run: Run) -> list[str]:
    return split_commas(run.config_argument.partition(":")[2])


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
    return markdown_table(["validation accuracy, %", "option", *headings], table)


def _cell(row: Mapping[str, Any] | None, whole: Mapping[str, Any]) -> str:
    if row is None:
        return NOTHING
    accuracy = f"{row['valid_accuracy']:.1f}"
    if not row["change"]:
        return accuracy
    difference = f"{row['valid_accuracy'] - whole['valid_accuracy']:+.1f}".replace("-", "−")
    return f"{accuracy} ({difference})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the runs, writes the file, prints the table and returns the exit code."""
    parser = parser_of("benchmarks.ablation", __doc__)
    parser.add_argument("folder", type=path_argument, help="folder that contains the runs")
    parser.add_argument("--out", type=path_argument, required=True, help="output file, .json")
    given = parser.parse_args(arguments)
    return run_to_end("benchmarks.ablation", lambda: _collect(given.folder, given.out))


def _collect(folder: Path, out: Path) -> None:
    rows = rows_of(find_runs([folder]))
    table = markdown(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_json(out, {"rows": rows})
    print(table, end="")


if __name__ == "__main__":
    sys.exit(main())
