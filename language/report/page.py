"""What the report says, in order, as Markdown; and every number of it, for programs."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from harness.environments import version_sentences
from harness.run_files import finite
from language.glue.tasks import TASKS
from language.report import gains, tables
from language.report.groups import Group
from language.report.published import COLUMNS, REMARK, SOURCE, TABLE_2, URL
from language.report.results import Run


def markdown(groups: Sequence[Group], left_out: Sequence[str], picture: str) -> str:
    """The report on `groups`.

    Args:
      groups: all of them, in their order.
      left_out: a sentence for each run that is not among them.
      picture: the name of Figure 5's file, which is there where there was pretraining.
    """
    parts = ["# Language model: results"]
    tasks = [task for task in TASKS if any(group.task == task for group in groups)]
    if tasks:
        parts += [
            "## Fine-tuning beside the paper",
            "Validation, but for IMDb, whose test reviews have labels; at the step that validation chose,"
            " in percent. Ours: mean ± standard deviation over n seeds, or for one seed the standard error"
            " over examples (s.e.). Where a model was tuned, the setting that is best on validation, as in"
            " the paper: such a number is a little too good.",
            tables.table_2(groups).markdown().rstrip("\n"),
            f"[{SOURCE}]({URL}). {REMARK}",
        ]
    if found := gains.find_gains(groups):
        parts += [
            "## What pretraining gives",
            "The same runs from the checkpoint and from scratch: means over the seeds that both have, and"
            " the standard error of the difference over examples, each paired with itself.",
            gains.table(found).markdown().rstrip("\n"),
        ]
    pretraining = [group for group in groups if not group.task]
    if pretraining:
        parts += [
            "## Pretraining",
            "On held-out text, at the step with the least loss there. Mean ± standard deviation over seeds.",
            tables.pretraining_table(pretraining).markdown().rstrip("\n"),
            f"![{_alternative(pretraining)}]({quote(picture)})",
        ]
    for task in tasks:
        own = [group for group in groups if group.task == task]
        parts += [
            f"## {TASKS[task].title}",
            "Every setting: mean ± standard deviation over seeds.",
            tables.settings_table(own).markdown().rstrip("\n"),
            "Every run: ± the standard error over examples.",
            tables.runs_table(own).markdown().rstrip("\n"),
        ]
    runs = [run for group in groups for run in group.runs]
    versions = version_sentences((run.name, run.result.get("versions") or {}) for run in runs)
    parts += ["## How it was measured", "\n".join(f"* {sentence}" for sentence in versions)]
    if left_out:
        parts += ["Left out:", "\n".join(f"* {sentence}" for sentence in left_out)]
    return "\n\n".join(parts) + "\n"


def numbers(groups: Sequence[Group]) -> dict[str, Any]:
    """Every number of the tables, as results have them: accuracies in [0, 1]; None if not known."""
    rows = []
    for model, own in tables.by_model(groups).items():
        row: dict[str, Any] = {"model": model}
        for column in COLUMNS:
            if found := tables.of_column(own, *column[1:]):
                group, cell, settings = found
                row[column.title] = {
                    **cell._asdict(),
                    "setting": group.label,
                    "best_of": settings,
                    "partial": group.is_partial,
                }
        rows.append(row)
    titles = [column.title for column in COLUMNS]
    found_numbers: dict[str, Any] = finite(
        {
            "table2": rows,
            "published_percent": {
                model: dict(zip(titles, values, strict=True)) for model, values in TABLE_2.items()
            },
            "gains": [gains.numbers(gain) for gain in gains.find_gains(groups)],
            "settings": [_setting(group) for group in groups],
        }
    )
    return found_numbers


def _setting(group: Group) -> dict[str, Any]:
    metrics = TASKS[group.task].metrics if group.task else tables.PRETRAINING
    cells = {
        split: {metric: cell._asdict() for metric in metrics if (cell := group.cell(split, metric))}
        for split in tables.SPLIT_TITLES
    }
    return {
        "kind": group.runs[0].kind,
        "task": group.task,
        "model": group.model,
        "label": group.label,
        "partial": group.is_partial,
        "setting": dict(group.runs[0].setting),
        "baselines": tables.baselines([group]),
        "metrics": {split: own for split, own in cells.items() if own},
        "runs": [_run(run) for run in group.runs],
    }


def _run(run: Run) -> dict[str, Any]:
    keys = [
        *("best_step", "total_steps", "parameters", "step_seconds", "examples_per_second"),
        *("peak_bytes", "config_sha256", "data_sha256"),
    ]
    return {
        "run": run.name,
        "seed": run.seed,
        "device": run.device,
        "scores": {split: scores._asdict() for split, scores in run.scores.items()},
        **{key: run.result.get(key) for key in keys},
    }


def _alternative(groups: Sequence[Group]) -> str:
    labels = "; ".join(group.label for group in groups)
    return f"Masked tokens, loss and sentence orders on held-out text against steps: {labels}."
