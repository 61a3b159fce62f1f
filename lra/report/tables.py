"""Tables of the report on benchmark runs."""

import math
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

from lra.report.comparisons import Comparison, Grid, grids, mean_over
from lra.report.groups import Group, rank, tasks_of
from lra.report.labels import RECIPES
from lra.report.published import (
    COLUMNS,
    PATH_X,
    TABLE,
    TITLES,
    Published,
    Source,
    baselines_of,
    title_of,
)
from nystromformer_jax.spelling import nearest
from reporting.statistics import Summary, binomial_error
from reporting.tables import (
    DIVERGED,
    NOT_FINISHED,
    NOT_RUN,
    NOTHING,
    OURS,
    PARTIAL,
    Table,
    format_3sf,
    format_half_width,
    format_spread,
)

TRACKS: Mapping[str, str] = {
    "paper": f"{OURS}, the paper's recipe",
    **{recipe: f"{OURS}, recipe={recipe}" for recipe in RECIPES[1:]},
    "other": f"{OURS}, other settings",
}


def table3(groups: Sequence[Group], *, include_partial: bool = False) -> str:
    """Returns Table 3 of the paper as Markdown, with rows of this code and of other publications.

    With `include_partial`, it also shows the accuracies of partial runs, marked as partial.
    """
    return benchmark_table(groups, include_partial=include_partial).markdown()


def task_table(groups: Sequence[Group], task: str, *columns: str) -> str:
    """Returns a Markdown table of the settings and trivial predictors of a task; default: all columns.

    Raises:
      ValueError: No group has this task.
    """
    own = [group for group in groups if group.task == task]
    if not own:
        known = ", ".join(tasks_of(groups)) or "none"
        raise ValueError(f"No run has the task {task!r}; known tasks: {known}.")
    table = task_groups_table(own)
    return (table.select(*columns) if columns else table).markdown()


def benchmark_table(
    groups: Sequence[Group],
    published: Mapping[Source, Sequence[Published]] = TABLE,
    *,
    include_partial: bool = False,
    more_tasks: Sequence[str] = (),
) -> Table:
    """Returns Table 3 of the paper as a `Table`, with the rows of `published`; see `table3`.

    `more_tasks` are tasks outside of the benchmark, which get a column each.
    """

    def cell(cells: Mapping[str, Group], task: str) -> str:
        group = cells.get(task)
        if group is None:
            return NOT_RUN
        return PARTIAL if _is_hidden(group, include_partial) else _accuracy(group, _format_group)

    ours: dict[str, list[list[str]]] = {track: [] for track in TRACKS}
    rows_of_labels = benchmark_rows(groups, include_partial=include_partial, more_tasks=more_tasks)
    for label, cells in rows_of_labels.items():
        track = track_of_row(cells)
        ours[track].append(
            [
                label.removesuffix(f", recipe={track}"),
                *(cell(cells, task) for task in COLUMNS),
                _mean(COLUMNS, cells),
                cell(cells, PATH_X),
                _mean(TITLES, cells),
                *(cell(cells, task) for task in more_tasks),
            ]
        )
    sections = [(TRACKS[track], rows) for track, rows in ours.items() if rows]
    for source, own in published.items():
        rows = [
            [
                row.model,
                *map(_number, (*row.accuracies, row.mean, row.path_x, row.mean_of_six)),
                *(NOTHING for _ in more_tasks),
            ]
            for row in own
        ]
        sections.append((source.title, rows))
    columns = ["test accuracy, %", *COLUMNS.values(), "mean of 5", TITLES[PATH_X], "mean of 6"]
    return Table([*columns, *map(title_of, more_tasks)], sections)


def latex(table: Table, columns: Sequence[str], sources: Sequence[str] | None, *, n: bool) -> str:
    """Returns a `benchmark_table` in LaTeX, with a choice of its columns and sections.

    `columns` are headings; by default all. `sources` are beginnings of the titles of published rows; None for
    all. Our rows are always there. Without `n`, the cells do not have the number of seeds.

    Raises:
      ValueError: A heading is unknown.
    """
    if unknown := [name for name in columns if name not in table.columns]:
        raise ValueError(f"--columns: no column {unknown[0]!r}{nearest(unknown[0], table.columns)}")
    table = table.select(table.columns[0], *(columns or table.columns[1:]))
    kept = (OURS, *(sources or ())) if sources is not None else ("",)
    sections = [(title, rows) for title, rows in table.sections if title.startswith(kept)]
    if not n:
        sections = [
            (title, [[re.sub(r" \(n = [^)]*\)", "", cell) for cell in row] for row in rows])
            for title, rows in sections
        ]
    return Table(table.columns, sections).latex()


def benchmark_rows(
    groups: Sequence[Group], *, include_partial: bool = False, more_tasks: Sequence[str] = ()
) -> dict[str, dict[str, Group]]:
    """Returns the rows of this code: for each label, a group of runs per task.

    If an attention has one complete group on a task, the row shows this group. If it has several, there is
    a row for each. If it has none, the row shows the group with the most steps, with a score if possible.
    Attentions whose groups are all part of a grid are only shown in the grid, unless this holds for all.
    Without `include_partial`, attentions whose groups are all partial or unfinished have no row.
    """
    official = [group for group in groups if group.task in (*TITLES, *more_tasks)]
    cells: dict[str, dict[str, Group]] = {}
    for task, attention in dict.fromkeys((group.task, group.attention) for group in official):
        own = [group for group in official if (group.task, group.attention) == (task, attention)]
        complete = [group for group in own if group.state == "complete"]
        if len(complete) > 1:
            for group in complete:
                cells.setdefault(group.label, {})[task] = group
        else:
            furthest = max(own, key=lambda group: (bool(group.scored), group.done_steps))
            cells.setdefault(attention, {})[task] = (complete or [furthest])[0]
    in_grids = [group for grid in grids(official) for group in grid.cells.values()]
    outside = [name for name in cells if any(own not in in_grids for own in cells[name].values())]
    shown = [
        label
        for label in outside or cells
        if include_partial
        or any(group.state in ("complete", "diverged") for group in cells[label].values())
    ]
    labels = sorted(shown, key=lambda label: rank(label, cells[label].values()))
    return {label: cells[label] for label in labels}


def _is_hidden(group: Group, include_partial: bool) -> bool:
    """Returns True if Table 3 does not show the accuracy of a group."""
    return group.state == "partial" and not include_partial


def track_of_row(cells: Mapping[str, Group]) -> str:
    """Returns the track of a row of this code; groups with the same label have the same track."""
    return next(iter(cells.values())).track


def task_groups_table(groups: Sequence[Group]) -> Table:
    """Returns a table of one task with a row per setting and per trivial predictor."""
    rows = [
        {
            "attention": group.label,
            "seeds": _seeds(group),
            "test accuracy, %": _accuracy(group),
            "binomial error": f"{group.binomial_error:.2f}" if group.scored else NOTHING,
            "95 % interval": _interval(group.summary) if group.scored else NOTHING,
            "steps": group.progress,
            "s per step": _step_seconds(group),
            "examples per second": f"{format_3sf(group.examples_per_second)}{_mark(group)}",
            "memory, GiB": f"{group.peak_bytes / 2**30:.2f}" if group.peak_bytes else NOTHING,
            "parameters": f"{group.parameters:,}" if group.parameters else NOTHING,
        }
        for group in groups
    ]
    trivial = [
        {"attention": name, "test accuracy, %": f"{100 * accuracy:.2f}"}
        for name, accuracy in baselines(groups)[0].items()
    ]
    return Table.from_rows({"": rows, "Trivial predictors": trivial})


def runs_table(groups: Sequence[Group]) -> Table:
    """Returns a table of one task with a row per run and binomial standard errors."""
    rows = []
    for group in groups:
        for run in group.runs:
            test, result = run.remark, run.result
            if result:
                error = binomial_error(result.test_accuracy, result.test_examples)
                test = format_spread(100 * result.test_accuracy, 100 * error)
                test += f", {run.remark or PARTIAL}" if result.partial else ""
            rows.append(
                {
                    "attention": group.label,
                    "seed": str(run.seed),
                    "test accuracy, %": test,
                    "validation, %": f"{100 * result.valid_accuracy:.2f}" if result else NOTHING,
                    "best step": f"{result.best_step:,}" if result else NOTHING,
                    "steps": run.progress,
                    "s per step": format_3sf(run.step_seconds) if result else NOTHING,
                    "device": run.device or NOTHING,
                }
            )
    return Table.from_rows({"": rows})


def comparisons_table(comparisons: Sequence[Comparison]) -> Table:
    """Returns a table of the differences between settings of one task."""
    rows = [
        {
            "difference, percentage points": f"{one.first} − {one.second}",
            "seeds": ", ".join(map(str, one.seeds)) or "none in common",
            "mean": f"{one.difference:+.2f}".replace("-", "−"),
            "95 % t-interval": format_half_width(one.half_width),
            "binomial error": format_half_width(one.error),
            "p": format_p(one.p),
            "p, Holm": format_p(one.p_holm),
        }
        for one in comparisons
    ]
    return Table.from_rows({"": rows})


def grid_table(grid: Grid) -> Table:
    """Returns a table of test accuracies over two options."""
    rows = [
        [
            f"{row:,}",
            *(
                _format_group(grid.cells[row, column]) if (row, column) in grid.cells else NOT_RUN
                for column in grid.columns
            ),
        ]
        for row in grid.rows
    ]
    corner = f"{grid.row_option} ↓, {grid.column_option} →"
    return Table([corner, *(f"{column:,}" for column in grid.columns)], [("", rows)])


def shortfalls(groups: Iterable[Group]) -> list[str]:
    """Returns sentences about incomplete runs."""
    return [
        f"{title_of(group.task)}, {group.label},"
        f" seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {done}."
        for group in groups
        for done, seeds in group.shortfalls.items()
    ]


def baselines(groups: Sequence[Group]) -> tuple[Mapping[str, float], bool]:
    """Returns accuracies of trivial predictors in [0, 1], and True if they are from all runs' test set.

    Older runs recorded fewer predictors, so those of all runs on the first run's data are merged.
    """

    def test_set(group: Group) -> tuple[Hashable, ...]:
        return group.setting["data.sha256"], group.setting.get("data.examples")

    test_sets = [test_set(group) for group in groups if group.scored]
    found: dict[str, float] = {}
    for group in groups:
        for run in group.scored:
            if run.result and test_set(group) == test_sets[0]:
                found = {**run.result.baselines, **found}
    if not found:
        return baselines_of(groups[0].task), False
    return found, len(set(test_sets)) == 1


def _number(value: float | str | None) -> str:
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else f"{value:.2f}"


def _format_mean(group: Group) -> str:
    """Returns "mean ± deviation" of the accuracies."""
    return format_spread(group.summary.mean, group.summary.deviation)


def _format_group(group: Group) -> str:
    """Returns "mean ± deviation (n = N)" of the accuracies; see `_of_total`."""
    return _format_mean_with_n(group.summary, len(group.runs), group.diverged)


def _mean(tasks: Collection[str], cells: Mapping[str, Group]) -> str:
    mean = mean_over(tasks, cells)
    if mean is None:
        return NOTHING
    fewest = min(
        (cells[task] for task in tasks), key=lambda group: (len(group.scored), -len(group.runs))
    )
    return _format_mean_with_n(mean, len(fewest.runs), fewest.diverged)


def _format_mean_with_n(summary: Summary, num_runs: int, diverged: int) -> str:
    """Returns "mean ± deviation (n = N)"; see `_of_total`."""
    spread = format_spread(summary.mean, summary.deviation)
    return f"{spread} (n = {summary.n}{_of_total(summary.n, num_runs, diverged)})"


def _of_total(scored: int, num_runs: int, diverged: int) -> str:
    """Returns " of N", and the number of diverged runs, if some of the N runs are not scored."""
    if num_runs <= scored:
        return ""
    return f" of {num_runs}{f', {diverged} diverged' if diverged else ''}"


def _seeds(group: Group) -> str:
    scored = group.scored or group.runs
    of_total = _of_total(len(scored), len(group.runs), group.diverged)
    return ", ".join(str(run.seed) for run in scored) + of_total


def _accuracy(group: Group, format: Callable[[Group], str] = _format_mean) -> str:
    if not group.scored:
        return DIVERGED if group.state == "diverged" else NOT_FINISHED
    if group.state != "partial":
        return format(group)
    return f"{format(group)}, {group.scored[0].remark or PARTIAL}"


def _interval(summary: Summary) -> str:
    if math.isnan(summary.half_width):
        return NOTHING
    low, high = summary.mean - summary.half_width, summary.mean + summary.half_width
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def speed_range(group: Group, joined_by: str) -> str:
    """Returns the range of the seconds per step of a group as text; empty if unknown."""
    return joined_by.join(map(format_3sf, group.step_seconds_range or ()))


def _step_seconds(group: Group) -> str:
    spread = f" ({speed_range(group, '–')})" if group.step_seconds_range else ""
    return f"{format_3sf(group.step_seconds)}{spread}{_mark(group)}"


def _mark(group: Group) -> str:
    return "" if group.is_steady else " †"


def format_p(value: float) -> str:
    """Returns a p-value with three decimals; a dash for NaN."""
    if math.isnan(value):
        return NOTHING
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"
