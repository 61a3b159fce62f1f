"""The report's tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from harness.tables import NOT_RUN, NOTHING, Table, three_digits
from language.glue.tasks import TASKS
from language.report.groups import Cell, Group, best
from language.report.published import COLUMNS, SOURCE, TABLE_2
from language.report.results import Run

OURS = "This code"
TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mlm_accuracy": "masked tokens, %",
    "order_accuracy": "order, %",
    "mlm_loss": "loss, nats a masked token",
    "perplexity": "perplexity",
}
SPLIT_TITLES = {"valid": "", "valid_mismatched": "mismatched ", "test": "test "}
PRETRAINING = ("mlm_accuracy", "order_accuracy", "mlm_loss", "perplexity")


def table_2(groups: Sequence[Group]) -> Table:
    """The paper's Table 2: ours, a row a model, above the paper's."""
    ours = [
        [model, *(cell_words(of_column(own, *column[1:])) for column in COLUMNS)]
        for model, own in by_model(groups).items()
        if any(group.task in {column.task for column in COLUMNS} for group in own)
    ]
    paper = [[model, *(f"{value:.1f}" for value in values)] for model, values in TABLE_2.items()]
    sections: list[tuple[str, list[list[str]]]] = [(OURS, ours)] if ours else []
    columns = ["model", *(column.title for column in COLUMNS)]
    return Table(columns, [*sections, (SOURCE, paper)])


def of_column(
    groups: Sequence[Group], task: str, split: str, metric: str
) -> tuple[Group, Cell, int] | None:
    """A model's best setting on a task, its number there, and of how many settings it is the best."""
    own = [group for group in groups if group.task == task]
    cell = best(own).cell(split, metric) if own else None
    return (best(own), cell, len(own)) if cell else None


def by_model(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Groups of fine-tuning under their models, those with most tasks first."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        if group.task:
            found.setdefault(group.model, []).append(group)
    return dict(
        sorted(found.items(), key=lambda item: (-len({own.task for own in item[1]}), item[0]))
    )


def settings_table(groups: Sequence[Group]) -> Table:
    """The settings of one task, a row each, with all metrics over seeds."""
    names = _metrics_of(groups)
    rows = []
    for group in groups:
        main = group.cell("valid", TASKS[group.task].select_by)
        rows.append(
            [
                f"{group.label}{', partial' if group.is_partial else ''}",
                ", ".join(str(run.seed) for run in group.runs),
                *(_of_seeds(group.cell(split, metric)) for split, metric in names),
                f"± {100 * main.half_width:.2f}" if main and main.n > 1 else NOTHING,
                _distinct(f"{run.result['total_steps']:,}" for run in group.runs),
            ]
        )
    columns = ["setting", "seeds", *(_title(*name) for name in names)]
    return Table([*columns, "95 % t-interval", "steps"], [("", rows)])


def runs_table(groups: Sequence[Group]) -> Table:
    """The runs of one task, a row each, with standard errors over examples."""
    names = _metrics_of(groups)
    rows = [
        [
            run.name,
            group.label,
            str(run.seed),
            *(_with_error(run, split, metric) for split, metric in names),
            f"{run.scores['valid'].examples:,}",
            f"{run.result['best_step']:,} of {run.result['total_steps']:,}",
            three_digits(run.result.get("step_seconds")),
            run.device or NOTHING,
        ]
        for group in groups
        for run in group.runs
    ]
    columns = ["run", "setting", "seed", *(_title(*name) for name in names)]
    return Table([*columns, "examples", "best step", "s a step", "device"], [("", rows)])


def pretraining_table(groups: Sequence[Group]) -> Table:
    """The models' masked tokens and sentence orders on held-out text, over what knows no context."""
    rows = []
    for group in groups:
        result = group.runs[0].result
        rows.append(
            [
                f"{group.label}{', partial' if group.is_partial else ''}",
                ", ".join(str(run.seed) for run in group.runs),
                *(_of_seeds(group.cell("valid", metric), metric) for metric in PRETRAINING),
                f"{result['parameters'] / 1e6:,.1f}" if result.get("parameters") else NOTHING,
                _distinct(f"{run.result['total_steps']:,}" for run in group.runs),
                _distinct(f"{run.scores['valid'].examples:,}" for run in group.runs),
            ]
        )
    columns = ["model", "seeds", *(TITLES[metric] for metric in PRETRAINING)]
    columns += ["parameters, M", "steps", "held-out pairs"]
    sections = [("", rows)]
    if known := baselines(groups):
        cells = (_plain(known[metric], metric) if metric in known else "" for metric in PRETRAINING)
        name = "most frequent token, constant order; frequencies alone"
        sections.append(("Without context", [[name, "", *cells, "", "", ""]]))
    return Table(columns, sections)


def baselines(groups: Sequence[Group]) -> Mapping[str, float]:
    """What can be scored without context, where all runs that say it say the same."""
    said = [
        run.result["baselines"]
        for group in groups
        for run in group.runs
        if run.result.get("baselines")
    ]
    return said[0] if said and all(one == said[0] for one in said) else {}


def cell_words(found: tuple[Group, Cell, int] | None) -> str:
    """A cell of Table 2: over seeds, or with the standard error over examples where there is one."""
    if found is None:
        return NOT_RUN
    group, cell, settings = found
    if cell.n > 1:
        words = f"{100 * cell.mean:.2f} ± {100 * cell.deviation:.2f} (n = {cell.n})"
    elif math.isnan(cell.error):
        words = f"{100 * cell.mean:.2f}"
    else:
        words = f"{100 * cell.mean:.2f} (s.e. {100 * cell.error:.2f})"
    words += f", best of {settings}" if settings > 1 else ""
    return f"{words}, partial" if group.is_partial else words


def _metrics_of(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The splits and metrics that any run of a task has, in the task's order."""
    runs = [run for group in groups for run in group.runs]
    return [
        (split, metric)
        for split in SPLIT_TITLES
        for metric in TASKS[groups[0].task].metrics
        if any(split in run.scores and metric in run.scores[split].values for run in runs)
    ]


def _title(split: str, metric: str) -> str:
    return f"{SPLIT_TITLES[split]}{TITLES[metric]}, %"


def _is_share(metric: str) -> bool:
    """Whether a metric is shown in percent."""
    return metric not in ("mlm_loss", "perplexity")


def _plain(value: float, metric: str) -> str:
    if metric == "perplexity":
        return three_digits(value)
    return f"{100 * value:.2f}" if _is_share(metric) else f"{value:.3f}"


def _of_seeds(cell: Cell | None, metric: str = "") -> str:
    if cell is None:
        return NOTHING
    if cell.n == 1:
        return _plain(cell.mean, metric)
    return f"{_plain(cell.mean, metric)} ± {_plain(cell.deviation, metric)}"


def _with_error(run: Run, split: str, metric: str) -> str:
    if split not in run.scores or metric not in run.scores[split].values:
        return NOTHING
    words = f"{100 * run.scores[split].values[metric]:.2f}"
    error = run.scores[split].errors.get(metric)
    return words if error is None else f"{words} ± {100 * error:.2f}"


def _distinct(words: Any) -> str:
    return "; ".join(dict.fromkeys(words))
