"""The report's tables."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from harness.statistics import Summary, binomial_error
from harness.tables import NOT_FINISHED, NOT_RUN, NOTHING, Table, three_digits
from lra.report.comparisons import Comparison, Grid, grids, mean_over
from lra.report.groups import Group, rank
from lra.report.published import COLUMNS, PATH_X, TABLE, TITLES, baselines_of

OURS = "This code"


def benchmark_table(groups: Sequence[Group]) -> Table:
    """The paper's Table 3: ours, the paper's, reruns, and the official board."""
    ours = []
    for label, cells in benchmark_rows(groups).items():
        ours.append(
            [
                label,
                *(score(cells.get(task)) for task in COLUMNS),
                _mean(COLUMNS, cells),
                score(cells.get(PATH_X)),
                _mean(TITLES, cells),
            ]
        )
    sections: list[tuple[str, list[list[str]]]] = [(OURS, ours)] if ours else []
    for source, rows in TABLE.items():
        sections.append(
            (
                source.title,
                [
                    [
                        row.model,
                        *(f"{value:.2f}" for value in row.accuracies),
                        f"{row.mean:.2f}",
                        row.path_x,
                        NOTHING if row.mean_of_six is None else f"{row.mean_of_six:.2f}",
                    ]
                    for row in rows
                ],
            )
        )
    columns = ["test accuracy, %", *COLUMNS.values(), "mean of 5", TITLES[PATH_X], "mean of 6"]
    return Table(columns, sections)


def benchmark_rows(groups: Sequence[Group]) -> dict[str, dict[str, Group]]:
    """The rows of ours: for each attention its groups by task.

    A cell is the attention's whole group, or else the scored one that went furthest; several whole ones get
    rows of their own. Cells of a grid that have run on nothing else stay in the grid.
    """
    official = [group for group in groups if group.task in TITLES]
    cells: dict[str, dict[str, Group]] = {}
    for task, attention in dict.fromkeys((group.task, group.attention) for group in official):
        own = [group for group in official if (group.task, group.attention) == (task, attention)]
        whole = [group for group in own if group.state == "whole"]
        if len(whole) > 1:
            for group in whole:
                cells.setdefault(group.label, {})[task] = group
        else:
            furthest = max(own, key=lambda group: (bool(group.scored), _done_steps(group)))
            cells.setdefault(attention, {})[task] = (whole or [furthest])[0]
    in_grids = [group for grid in grids(official) for group in grid.cells.values()]
    others = [
        label
        for label, row in cells.items()
        if any(group not in in_grids for group in row.values())
    ]
    return {
        label: cells[label]
        for label in sorted(others or cells, key=lambda label: rank(label, cells[label].values()))
    }


def task_groups_table(groups: Sequence[Group]) -> Table:
    """The settings of one task, a row each, over what trivial predictors score."""
    rows = [
        [
            group.label,
            _seeds(group),
            _accuracy(group),
            f"{group.binomial_error:.2f}" if group.scored else NOTHING,
            _interval(group.summary) if group.scored else NOTHING,
            group.progress,
            three_digits(group.step_seconds),
            three_digits(group.examples_per_second),
            f"{group.peak_bytes / 2**30:.2f}" if group.peak_bytes else NOTHING,
        ]
        for group in groups
    ]
    columns = [
        "attention",
        "seeds",
        "test accuracy, %",
        "binomial error",
        "95 % interval",
        "steps",
        "s a step",
        "examples a second",
        "memory, GiB",
    ]
    trivial = [
        [name, "", f"{100 * accuracy:.2f}", *[""] * (len(columns) - 3)]
        for name, accuracy in baselines(groups)[0].items()
    ]
    sections = [("", rows)]
    return Table(columns, [*sections, ("Trivial predictors", trivial)] if trivial else sections)


def runs_table(groups: Sequence[Group]) -> Table:
    """The runs of one task, a row each, with their binomial standard errors."""
    rows = []
    for group in groups:
        for run in group.runs:
            result = run.result
            if result is None:
                scores = [NOT_FINISHED, NOTHING, NOTHING, run.progress, NOTHING]
            else:
                error = binomial_error(result.test_accuracy, result.test_examples)
                partial = ", partial" if result.partial else ""
                scores = [
                    f"{100 * result.test_accuracy:.2f} ± {100 * error:.2f}{partial}",
                    f"{100 * result.valid_accuracy:.2f}",
                    f"{result.best_step:,}",
                    run.progress,
                    three_digits(result.step_seconds),
                ]
            rows.append([group.label, str(run.seed), *scores, run.device or NOTHING])
    columns = [
        "attention",
        "seed",
        "test accuracy, %",
        "validation, %",
        "best step",
        "steps",
        "s a step",
        "device",
    ]
    return Table(columns, [("", rows)])


def comparisons_table(comparisons: Sequence[Comparison]) -> Table:
    """Differences between the settings of one task."""
    rows = [
        [
            f"{one.first} − {one.second}",
            ", ".join(map(str, one.seeds)) if one.paired else "not paired",
            signed(one.difference),
            f"± {one.half_width:.2f}" if one.paired else NOTHING,
            NOTHING if one.paired else f"± {one.error:.2f}",
            _p(one.p),
            _p(one.p_holm),
        ]
        for one in comparisons
    ]
    columns = [
        "difference, percentage points",
        "seeds",
        "mean",
        "95 % t-interval",
        "binomial error",
        "p",
        "p, Holm",
    ]
    return Table(columns, [("", rows)])


def grid_table(grid: Grid) -> Table:
    """Test accuracies over two options."""
    rows = [
        [
            f"{row:,}",
            *(
                _of_group(grid.cells[row, column]) if (row, column) in grid.cells else NOT_RUN
                for column in grid.columns
            ),
        ]
        for row in grid.rows
    ]
    corner = f"{grid.row_option} ↓, {grid.column_option} →"
    return Table([corner, *(f"{column:,}" for column in grid.columns)], [("", rows)])


def shortfalls(groups: Iterable[Group]) -> list[str]:
    """What the runs that are not whole have done."""
    return [
        f"{TITLES.get(group.task, group.task)}, {group.label},"
        f" seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {done}."
        for group in groups
        for done, seeds in group.shortfalls.items()
    ]


def baselines(groups: Sequence[Group]) -> tuple[Mapping[str, float], bool]:
    """What trivial predictors score on one task, in [0, 1], and whether it was counted on its test set."""
    for group in groups:
        for run in group.scored:
            if run.result and run.result.baselines:
                return run.result.baselines, True
    return baselines_of(groups[0].task), False


def score(group: Group | None) -> str:
    """A cell of the benchmark's table."""
    if group is None:
        return NOT_RUN
    if not group.scored:
        return NOT_FINISHED
    partial = ", partial" if group.state == "partial" else ""
    return f"{_of_group(group)}{partial}"


def signed(value: float) -> str:
    """With its sign, the true minus."""
    return f"{value:+.2f}".replace("-", "−")


def _done_steps(group: Group) -> int:
    return max(run.done_steps for run in group.runs)


def _of_group(group: Group) -> str:
    return _of_seeds(group.summary, len(group.runs))


def _mean(tasks: Collection[str], cells: Mapping[str, Group]) -> str:
    mean = mean_over(tasks, cells)
    if mean is None:
        return NOTHING
    fewest = min(
        (cells[task] for task in tasks), key=lambda group: (len(group.scored), -len(group.runs))
    )
    return _of_seeds(mean, len(fewest.runs))


def _of_seeds(summary: Summary, num_runs: int) -> str:
    """Says of how many runs, where others diverged, were not finished or not whole."""
    spread = "" if math.isnan(summary.deviation) else f" ± {summary.deviation:.2f}"
    of_all = f" of {num_runs}" if num_runs > summary.n else ""
    return f"{summary.mean:.2f}{spread} (n = {summary.n}{of_all})"


def _seeds(group: Group) -> str:
    scored = group.scored or group.runs
    of_all = f" of {len(group.runs)}" if len(scored) < len(group.runs) else ""
    return ", ".join(str(run.seed) for run in scored) + of_all


def _accuracy(group: Group) -> str:
    if not group.scored:
        return NOT_FINISHED
    summary = group.summary
    spread = "" if math.isnan(summary.deviation) else f" ± {summary.deviation:.2f}"
    return f"{summary.mean:.2f}{spread}{', partial' if group.state == 'partial' else ''}"


def _interval(summary: Summary) -> str:
    if math.isnan(summary.half_width):
        return NOTHING
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def _p(value: float) -> str:
    if math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
