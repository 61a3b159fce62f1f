"""Tables of the report."""

import math
from collections.abc import Iterable, Mapping, Sequence

from language.glue.tasks import TASKS
from language.report.groups import Cell, Group, best
from language.report.published import COLUMNS, SOURCE, TABLE_2, Column
from language.report.results import Run
from reporting.tables import (
    NOT_RUN,
    NOTHING,
    OURS,
    Table,
    format_3sf,
    format_half_width,
    format_spread,
)

TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mlm_accuracy": "MLM accuracy, %",
    "order_accuracy": "sentence-order accuracy, %",
    "mlm_loss": "MLM loss, nats per token",
    "perplexity": "perplexity",
}
SPLIT_TITLES = {"valid": "", "valid_mismatched": "mismatched ", "test": "test "}
PRETRAINING_METRICS = ("mlm_accuracy", "order_accuracy", "mlm_loss", "perplexity")


def table_2(groups: Sequence[Group]) -> Table:
    """Returns Table 2 of the paper: one row per model of this report, and the published rows."""
    ours = [
        [model, *(format_cell(of_column(own, column)) for column in COLUMNS)]
        for model, own in by_model(groups).items()
        if any(group.task in {column.task for column in COLUMNS} for group in own)
    ]
    paper = [[model, *(f"{value:.1f}" for value in values)] for model, values in TABLE_2.items()]
    sections: list[tuple[str, list[list[str]]]] = [(OURS, ours)] if ours else []
    columns = ["model", *(column.title for column in COLUMNS)]
    return Table(columns, [*sections, (SOURCE, paper)])


def of_column(groups: Sequence[Group], column: Column) -> tuple[Group, Cell, int] | None:
    """Returns a task's best setting, its metric and the number of settings compared; None without runs."""
    own = [group for group in groups if group.task == column.task]
    if not own:
        return None
    group = best(own)
    cell = group.cell(column.split, column.metric)
    return (group, cell, len(own)) if cell else None


def by_model(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Returns the fine-tuning groups by model, sorted by the number of tasks, most first."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        if group.task:
            found.setdefault(group.model, []).append(group)
    return dict(
        sorted(found.items(), key=lambda item: (-len({own.task for own in item[1]}), item[0]))
    )


def settings_table(groups: Sequence[Group]) -> Table:
    """Returns a table with one row per setting of a task: all metrics over seeds."""
    names = _metrics_of(groups)
    rows = []
    for group in groups:
        main = group.cell("valid", TASKS[group.task].select_by)
        rows.append(
            {
                "setting": _label(group),
                "seeds": _seeds(group),
                **{_title(*name): _of_seeds(group.cell(*name)) for name in names},
                "95 % t-interval": format_half_width(100 * main.half_width) if main else NOTHING,
                "steps": _distinct(run.result["total_steps"] for run in group.runs),
            }
        )
    return Table.from_rows({"": rows})


def runs_table(groups: Sequence[Group]) -> Table:
    """Returns a table with one row per run of a task: metrics with standard errors over examples."""
    names = _metrics_of(groups)
    rows = [
        {
            "run": run.name,
            "setting": group.label,
            "seed": str(run.seed),
            **{_title(*name): _with_error(run, *name) for name in names},
            "examples": f"{run.scores['valid'].examples:,}",
            "best step": f"{run.result['best_step']:,} of {run.result['total_steps']:,}",
            "s per step": format_3sf(run.result.get("step_seconds")),
            "device": run.device or NOTHING,
        }
        for group in groups
        for run in group.runs
    ]
    return Table.from_rows({"": rows})


def pretraining_table(groups: Sequence[Group]) -> Table:
    """Returns a table with one row per pretrained model, and the context-free baselines."""
    rows = []
    for group in groups:
        parameters = group.runs[0].result.get("parameters")
        rows.append(
            {
                "model": _label(group),
                "seeds": _seeds(group),
                **{
                    TITLES[name]: _of_seeds(group.cell("valid", name), name)
                    for name in PRETRAINING_METRICS
                },
                "parameters, M": f"{parameters / 1e6:,.1f}" if parameters else NOTHING,
                "steps": _distinct(run.result["total_steps"] for run in group.runs),
                "held-out pairs": _distinct(run.scores["valid"].examples for run in group.runs),
            }
        )
    known = baselines(groups)
    trivial = {
        TITLES[name]: _plain(known[name], name) for name in PRETRAINING_METRICS if name in known
    }
    label = {
        "model": "baselines: most frequent token and constant order (accuracies), unigram frequencies (loss)"
    }
    return Table.from_rows({"": rows, "Without context": [label | trivial] if known else []})


def baselines(groups: Sequence[Group]) -> Mapping[str, float]:
    """Returns the metrics of context-free baselines, if all runs with baselines agree."""
    known = [
        run.result["baselines"]
        for group in groups
        for run in group.runs
        if run.result.get("baselines")
    ]
    return known[0] if known and all(one == known[0] for one in known) else {}


def format_cell(found: tuple[Group, Cell, int] | None) -> str:
    """Returns a cell of Table 2: mean and deviation over seeds; for one seed, the error over examples."""
    if found is None:
        return NOT_RUN
    group, cell, settings = found
    if cell.n > 1:
        words = f"{format_spread(100 * cell.mean, 100 * cell.deviation)} (n = {cell.n})"
    elif math.isnan(cell.error):
        words = f"{100 * cell.mean:.2f}"
    else:
        words = f"{100 * cell.mean:.2f} (s.e. {100 * cell.error:.2f})"
    words += f", best of {settings}" if settings > 1 else ""
    return f"{words}, partial" if group.is_partial else words


def _metrics_of(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Returns all (split, metric) pairs that exist in the runs of a task, in the order of the task."""
    runs = [run for group in groups for run in group.runs]
    return [
        (split, metric)
        for split in SPLIT_TITLES
        for metric in TASKS[groups[0].task].metrics
        if any(split in run.scores and metric in run.scores[split].values for run in runs)
    ]


def _title(split: str, metric: str) -> str:
    return f"{SPLIT_TITLES[split]}{TITLES[metric]}, %"


def _plain(value: float, metric: str) -> str:
    if metric == "perplexity":
        return format_3sf(value)
    return f"{value:.3f}" if metric == "mlm_loss" else f"{100 * value:.2f}"


def _of_seeds(cell: Cell | None, metric: str = "") -> str:
    if cell is None:
        return NOTHING
    if cell.n == 1:
        return _plain(cell.mean, metric)
    return f"{_plain(cell.mean, metric)} ± {_plain(cell.deviation, metric)}"


def _with_error(run: Run, split: str, metric: str) -> str:
    if split not in run.scores or metric not in run.scores[split].values:
        return NOTHING
    scores = run.scores[split]
    return format_spread(100 * scores.values[metric], 100 * scores.errors.get(metric, math.nan))


def _label(group: Group) -> str:
    return f"{group.label}{', partial' if group.is_partial else ''}"


def _seeds(group: Group) -> str:
    return ", ".join(str(run.seed) for run in group.runs)


def _distinct(counts: Iterable[int]) -> str:
    return "; ".join(dict.fromkeys(f"{count:,}" for count in counts))
