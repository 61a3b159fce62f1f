"""Machine-readable numbers of the report."""

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lra.report import tables
from lra.report.comparisons import compare, grids, mean_over
from lra.report.groups import Group, tasks_of
from lra.report.labels import PRESET
from lra.report.published import COLUMNS, FAILED, PATH_X, TABLE, TITLES, Published, Source
from lra.report.results import Run
from reporting.runs import nonfinite_to_none
from reporting.statistics import binomial_error
from reporting.tables import OURS

CSV_COLUMNS = (
    "source",
    "task",
    "attention",
    "track",
    "state",
    "mean",
    "deviation",
    "n",
    "binomial_error",
    "done_steps",
    "budget_steps",
    "step_seconds",
    "examples_per_second",
    "peak_bytes",
    "parameters",
    "devices",
)


def numbers(
    groups: Sequence[Group],
    published_rows: Mapping[Source, Sequence[Published]] = TABLE,
    *,
    include_partial: bool = False,
) -> dict[str, Any]:
    """Returns all numbers of the tables; accuracies and values derived from them are in percent.

    Args:
      groups: Groups of runs.
      published_rows: Published rows.
      include_partial: If True, "table3" has the accuracies of partial runs.
    """
    comparisons = compare(groups)
    rows = []
    for label, cells in tables.benchmark_rows(groups, include_partial=include_partial).items():
        means = {f"mean_of_{len(tasks)}": mean_over(tasks, cells) for tasks in (COLUMNS, TITLES)}
        rows.append(
            {
                "attention": label,
                "track": tables.track_of_row(cells),
                **{
                    task: _cell(cells[task])
                    for task in TITLES
                    if task in cells and (include_partial or cells[task].state != "partial")
                },
                **{name: mean._asdict() if mean else None for name, mean in means.items()},
            }
        )
    published = [
        {
            "model": row.model,
            "source": source.title,
            "url": source.url,
            **dict(zip(COLUMNS, row.accuracies, strict=True)),
            PATH_X: None if row.path_x == FAILED else row.path_x,
            "mean_of_5": row.mean,
            "mean_of_6": row.mean_of_six,
        }
        for source, own in published_rows.items()
        for row in own
    ]
    by_task = {}
    for task in tasks_of(groups):
        own = [group for group in groups if group.task == task]
        trivial, counted = tables.baselines(own)
        by_task[task] = {
            "baselines": {name: 100 * value for name, value in trivial.items()},
            "baselines_counted_on_this_test_set": counted,
            "settings": [{**_cell(group), "setting": _setting(group)} for group in own],
            "runs": [_run(run, group) for group in own for run in group.runs],
            "comparisons": [dataclasses.asdict(one) for one in comparisons if one.task == task],
            "grids": [
                {
                    "attention": grid.attention,
                    "rows": grid.row_option,
                    "columns": grid.column_option,
                    "cells": [
                        {"row": row, "column": column, **_cell(group)}
                        for (row, column), group in sorted(grid.cells.items())
                    ],
                }
                for grid in grids(own)
            ],
        }
    found: dict[str, Any] = nonfinite_to_none(
        {"table3": rows, "published": published, "tasks": by_task}
    )
    return found


def csv_of(found: Mapping[str, Any]) -> str:
    """Converts the result of `numbers` to CSV: a line per task and setting, published rows included."""
    lines = [
        {**setting, "source": OURS, "task": task}
        for task, own in found["tasks"].items()
        for setting in own["settings"]
    ]
    lines += [
        {"source": row["source"], "task": task, "attention": row["model"], "mean": row[task]}
        for row in found["published"]
        for task in TITLES
        if row[task] is not None
    ]
    content = io.StringIO()
    writer = csv.DictWriter(content, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return content.getvalue()


def _setting(group: Group) -> dict[str, Any]:
    return {key: value for key, value in sorted(group.setting.items()) if key != PRESET}


def _cell(group: Group) -> dict[str, Any]:
    """Returns the numbers of a group."""
    return {
        "attention": group.label,
        "track": group.track,
        "state": group.state,
        "seeds": [run.seed for run in group.scored or group.runs],
        "runs": len(group.runs),
        "diverged": group.diverged,
        **(_statistics(group) if group.scored else {}),
        "done_steps": group.done_steps,
        "budget_steps": group.runs[0].budget_steps,
        "step_seconds": group.step_seconds,
        "step_seconds_range": group.step_seconds_range,
        "speed_is_steady": group.is_steady,
        "examples_per_second": group.examples_per_second,
        "peak_bytes": group.peak_bytes,
        "parameters": group.parameters,
        "devices": group.devices,
    }


def _statistics(group: Group) -> dict[str, Any]:
    summary = group.summary
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    interval = None if math.isnan(summary.half_width) else [low, high]
    return {**summary._asdict(), "interval": interval, "binomial_error": group.binomial_error}


def _run(run: Run, group: Group) -> dict[str, Any]:
    """Returns the numbers of a run."""
    found: dict[str, Any] = {
        "run": run.name,
        "attention": group.label,
        "seed": run.seed,
        "state": run.state,
        "done_steps": run.done_steps,
        "budget_steps": run.budget_steps,
        "device": run.device,
        "versions": run.versions,
        "config_sha256": run.config_sha256,
        "data_source": run.data_source,
        "data_sha256": run.data_sha256,
    }
    if result := run.result:
        found |= {
            "test_accuracy": 100 * result.test_accuracy,
            "binomial_error": 100 * binomial_error(result.test_accuracy, result.test_examples),
            "test_examples": result.test_examples,
            "valid_accuracy": 100 * result.valid_accuracy,
            "best_step": result.best_step,
            "step_seconds": run.step_seconds,
            "examples_per_second": run.examples_per_second,
            "peak_bytes": result.peak_bytes,
        }
    return found
