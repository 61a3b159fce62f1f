"""Groups beside each other: differences between attentions, grids of two options, the mean over tasks."""

import dataclasses
import itertools
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeGuard

from harness.statistics import Summary, holm, paired_p, summarize, t_interval
from lra.report.groups import Group, tasks_of
from lra.report.labels import unusual
from lra.report.standard import Setting, is_option

MAX_ALL_PAIRS = (
    5  # groups that are all compared with each other; more are compared with one of them
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The first group's accuracy minus the second's, in percentage points."""

    task: str
    first: str
    second: str
    seeds: tuple[int, ...]  # that both have; with fewer than two the difference is not paired
    difference: float
    half_width: float  # of the paired 95 % t interval; NaN unpaired
    error: float  # binomial, of the unpaired difference; NaN paired
    p: float  # of the paired t-test
    p_holm: float = math.nan

    @property
    def paired(self) -> bool:
        """Whether seeds were paired."""
        return len(self.seeds) > 1


@dataclasses.dataclass(frozen=True)
class Grid:
    """Groups of a task that differ in two numeric options of their attention, and in nothing else."""

    task: str
    attention: str
    row_option: str
    column_option: str
    cells: Mapping[tuple[float, float], Group]

    @property
    def rows(self) -> list[float]:
        """The values of `row_option`."""
        return sorted({row for row, _ in self.cells})

    @property
    def columns(self) -> list[float]:
        """The values of `column_option`."""
        return sorted({column for _, column in self.cells})


def compare(groups: Sequence[Group]) -> list[Comparison]:
    """Compares the groups of each task that have the same budget; corrected for all comparisons together."""
    found = []
    for task in tasks_of(groups):
        peers: dict[tuple[Hashable, ...], list[Group]] = {}
        for group in groups:
            if group.task == task and group.scored:
                peers.setdefault(group.budget, []).append(group)
        for own in peers.values():
            if len(own) <= MAX_ALL_PAIRS:
                pairs = list(itertools.combinations(own, 2))
            else:
                reference = _reference(own, groups)
                pairs = [(other, reference) for other in own if other is not reference]
            found += [_difference(*pair) for pair in pairs]
    corrected = holm([comparison.p for comparison in found])
    return [
        dataclasses.replace(comparison, p_holm=p)
        for comparison, p in zip(found, corrected, strict=True)
    ]


def _reference(own: Sequence[Group], groups: Sequence[Group]) -> Group:
    """The group whose attention ran on most tasks, and is the most usual of those."""

    def place(group: Group) -> tuple[int, int]:
        tasks = {other.task for other in groups if other.attention == group.attention}
        return -len(tasks), len(unusual(group.setting))

    return min(own, key=place)


def _difference(first: Group, second: Group) -> Comparison:
    one, other = first.accuracies, second.accuracies
    seeds = tuple(sorted(one.keys() & other.keys()))
    if len(seeds) < 2:
        return Comparison(
            first.task,
            first.label,
            second.label,
            seeds,
            first.summary.mean - second.summary.mean,
            half_width=math.nan,
            error=math.hypot(first.binomial_error, second.binomial_error),
            p=math.nan,
        )
    differences = [one[seed] - other[seed] for seed in seeds]
    mean, half_width = t_interval(differences)
    return Comparison(
        first.task,
        first.label,
        second.label,
        seeds,
        mean,
        half_width,
        error=math.nan,
        p=paired_p(differences),
    )


def grids(groups: Sequence[Group]) -> list[Grid]:
    """The grids among the groups: three or more of a task that differ in exactly two numeric options."""
    found = []
    buckets: dict[Hashable, list[Group]] = {}
    for group in groups:
        if group.scored:
            buckets.setdefault((group.task, group.state, *_rest(group.setting)), []).append(group)
    for own in buckets.values():
        options = sorted({key for group in own for key in group.setting if is_option(key)})
        values = {key: {group.setting.get(key) for group in own} for key in options}
        varying = [key for key in options if len(values[key]) > 1]
        if len(own) < 3 or len(varying) != 2:
            continue
        # The option with more values goes down, where there is more room.
        row, column = sorted(varying, key=lambda key: -len(values[key]))
        cells = {}
        for group in own:
            place = group.setting.get(row), group.setting.get(column)
            if _is_number(place[0]) and _is_number(place[1]):
                cells[place[0], place[1]] = group
        if len(cells) == len(own):
            name = str(own[0].setting["attention.name"])
            row, column = (option.partition(".")[2] for option in (row, column))
            found.append(Grid(own[0].task, name, row, column, cells))
    return found


def mean_over(tasks: Collection[str], cells: Mapping[str, Group]) -> Summary | None:
    """The mean over tasks, if all are there and whole; its spread, if they share their seeds."""
    groups = [cells[task] for task in tasks if task in cells]
    if len(groups) < len(tasks) or any(group.state != "whole" for group in groups):
        return None
    seeds = {tuple(group.accuracies) for group in groups}
    if len(seeds) == 1:
        by_seed = [
            sum(group.accuracies[seed] for group in groups) / len(groups) for seed in seeds.pop()
        ]
        return summarize(by_seed)
    mean = sum(group.summary.mean for group in groups) / len(groups)
    return Summary(min(len(group.accuracies) for group in groups), mean, math.nan, math.nan)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rest(setting: Setting) -> tuple[Hashable, ...]:
    """What is not the attention's options."""
    return tuple(sorted((key, repr(value)) for key, value in setting.items() if not is_option(key)))
