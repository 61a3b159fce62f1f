"""Creates the report as a Markdown page, and all numbers as JSON values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from language.glue.tasks import TASKS
from language.report import gains, plots, tables
from language.report.groups import Group
from language.report.published import COLUMNS, REMARK, SOURCE, TABLE_2, URL
from language.report.results import Run
from reporting.runs import nonfinite_to_none, version_sentences
from reporting.writer import Report, bullets, join, picture

# Keys of a run's result that are copied to the JSON file.
RUN_KEYS = (
    "best_step",
    "total_steps",
    "parameters",
    "step_seconds",
    "examples_per_second",
    "peak_bytes",
    "config_sha256",
    "data_sha256",
)


def make(groups: Sequence[Group], left_out: Sequence[str], path: Path) -> Report:
    """Writes the picture; returns the report, for `reporting.writer.main`."""
    pretraining, file = [group for group in groups if not group.task], picture_file(path)
    if pretraining:
        plots.plot_pretraining(pretraining, tables.baselines(pretraining), file)
    return Report(markdown(groups, left_out, path), numbers(groups))


def picture_file(path: Path) -> Path:
    """Returns the path of the pretraining picture, next to the report files."""
    return path.with_name(f"{path.name}-pretraining.png")


def markdown(groups: Sequence[Group], left_out: Sequence[str], path: Path) -> str:
    """Returns the Markdown page; `path` is the path of the report files without extension."""
    parts = ["# Language model: results"]
    tasks = [task for task in TASKS if any(group.task == task for group in groups)]
    if tasks:
        parts += [
            "## Fine-tuning compared with the paper",
            "Scores in percent on the validation set (IMDb: on the test set, which has labels), at the step"
            " with the best validation score. Ours are the mean ± standard deviation over n seeds, or for"
            " one seed the standard error over examples (s.e.). If several settings were run, the one that"
            " is best on validation is shown, as in the paper. This makes the score slightly too high.",
            tables.table_2(groups).markdown(),
            f"[{SOURCE}]({URL}). {REMARK}",
        ]
    if found := gains.find_gains(groups):
        parts += [
            "## Gains of pretraining",
            "Accuracy after the same fine-tuning, from the checkpoint and from scratch, even for tasks with"
            " another main metric. The means are over the seeds that both settings share. The error is the"
            " standard error of the paired difference over examples.",
            gains.table(found).markdown(),
        ]
    if pretraining := [group for group in groups if not group.task]:
        labels = "; ".join(group.label for group in pretraining)
        description = "Masked tokens, loss and sentence orders on held-out text against steps"
        parts += [
            "## Pretraining",
            "Metrics on held-out text, at the step with the smallest loss: mean ± standard deviation over"
            " seeds.",
            tables.pretraining_table(pretraining).markdown(),
            picture(picture_file(path), f"{description}: {labels}."),
        ]
    for task in tasks:
        own = [group for group in groups if group.task == task]
        parts += [
            f"## {TASKS[task].title}",
            "Every setting: mean ± standard deviation over seeds.",
            tables.settings_table(own).markdown(),
            "Every run: ± the standard error over examples.",
            tables.runs_table(own).markdown(),
        ]
    sentences = version_sentences(run for group in groups for run in group.runs)
    parts += ["## How it was measured", bullets(sentences)]
    return join([*parts, "Left out:", bullets(left_out)] if left_out else parts)


def numbers(groups: Sequence[Group]) -> dict[str, Any]:
    """Returns all numbers of the tables as JSON values; accuracies are in [0, 1]."""
    rows = []
    for model, own in tables.by_model(groups).items():
        row: dict[str, Any] = {"model": model}
        for column in COLUMNS:
            if found := tables.of_column(own, column):
                group, cell, settings = found
                row[column.title] = {
                    **cell._asdict(),
                    "setting": group.label,
                    "best_of": settings,
                    "partial": group.is_partial,
                }
        rows.append(row)
    titles = [column.title for column in COLUMNS]
    results = {
        "table2": rows,
        "published_percent": {
            model: dict(zip(titles, values, strict=True)) for model, values in TABLE_2.items()
        },
        "gains": [gains.numbers(gain) for gain in gains.find_gains(groups)],
        "settings": [_setting(group) for group in groups],
    }
    return dict(nonfinite_to_none(results))


def _setting(group: Group) -> dict[str, Any]:
    metrics = TASKS[group.task].metrics if group.task else tables.PRETRAINING_METRICS
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
    return {
        "run": run.name,
        "seed": run.seed,
        "device": run.device,
        "scores": {split: scores._asdict() for split, scores in run.scores.items()},
        **{key: run.result.get(key) for key in RUN_KEYS},
    }
