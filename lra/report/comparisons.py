"""Comparisons of groups: differences between settings, grids over two options, means over tasks."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

from lra.report.groups import Group, tasks_of
from lra.report.labels import is_option, label_differences
from nystromformer_jax.plugins import short_name
from reporting.statistics import Summary, holm, paired_p, summarize

MAX_ALL_PAIRS = 5  # if there are more groups, all are compared with one reference group


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Accuracy of the first group minus accuracy of the second group, in percentage points."""

    task: str
    first: str
    second: str
    seeds: tuple[int, ...]  # common to both groups; paired if there are at least two
    difference: float
    half_width: float  # half width of the paired 95 % t interval; NaN for fewer than three pairs
    error: float  # binomial standard error of the unpaired difference; NaN if paired
    p: float  # p-value of the paired t-test; NaN if unpaired
    p_holm: float = math.nan  # p-value with Holm's correction over all tests of the report

    @property
    def paired(self) -> bool:
        """True if the difference is paired by seed."""
        return len(self.seeds) > 1


@dataclasses.dataclass(frozen=True)
class Grid:
    """Groups of a task that differ only in two numeric options of the attention."""

    task: str
    attention: str
    row_option: str
    column_option: str
    cells: Mapping[tuple[float, float], Group]

    @property
    def rows(self) -> list[float]:
        """Values of `row_option`."""
        return sorted({row for row, _ in self.cells})

    @property
    def columns(self) -> list[float]:
        """Values of `column_option`."""
        return sorted({column for _, column in self.cells})


def compare(groups: Sequence[Group]) -> list[Comparison]:
    """Compares groups of the same task and budget, with p-values corrected over all comparisons."""
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
    """Returns the group whose attention ran on most tasks.

    If there are several, it is the one with the fewest differences from its config file.
    """

    def place(group: Group) -> tuple[int, int]:
        tasks = {other.task for other in groups if other.attention == group.attention}
        return -len(tasks), len(label_differences(group.setting))

    return min(own, key=place)


def _difference(first: Group, second: Group) -> Comparison:
    one, other = first.accuracies, second.accuracies
    seeds = tuple(sorted(one.keys() & other.keys()))
    names = first.task, first.label, second.label, seeds
    if len(seeds) < 2:  # the common seed alone, because a mean over more seeds has another spread
        error = math.hypot(first.binomial_error, second.binomial_error)
        means = [
            accuracies[seeds[0]] if seeds else statistics.fmean(accuracies.values())
            for accuracies in (one, other)
        ]
        return Comparison(*names, means[0] - means[1], math.nan, error, math.nan)
    pairs = [one[seed] for seed in seeds], [other[seed] for seed in seeds]
    differences = summarize([a - b for a, b in zip(*pairs, strict=True)])
    return Comparison(*names, differences.mean, differences.half_width, math.nan, paired_p(*pairs))


def grids(groups: Sequence[Group]) -> list[Grid]:
    """Returns a grid for each set of three or more groups that differ in exactly two numeric options."""
    found = []
    buckets: dict[Hashable, list[Group]] = {}
    for group in groups:
        if group.scored:
            rest = frozenset(item for item in group.setting.items() if not is_option(item[0]))
            buckets.setdefault((group.task, group.state, rest), []).append(group)
    for own in buckets.values():
        options = sorted({key for group in own for key in group.setting if is_option(key)})
        values = {key: {group.setting.get(key) for group in own} for key in options}
        varying = [key for key in options if len(values[key]) > 1]
        if len(own) < 3 or len(varying) != 2:
            continue
        # The option with more values indexes the rows.
        row, column = sorted(varying, key=lambda key: -len(values[key]))
        places: list[Any] = [(group.setting.get(row), group.setting.get(column)) for group in own]
        cells = {
            place: group
            for place, group in zip(places, own, strict=True)
            if all(type(value) in (int, float) for value in place)
        }
        if len(cells) == len(own):
            name = short_name(str(own[0].setting["attention.name"]))
            row, column = (option.partition(".")[2] for option in (row, column))
            found.append(Grid(own[0].task, name, row, column, cells))
    return found


def mean_over(tasks: Collection[str], cells: Mapping[str, Group]) -> Summary | None:
    """Returns the mean over tasks, with a spread if all have the same seeds; None if any is incomplete."""
    groups = [cells[task] for task in tasks if task in cells]
    if len(groups) < len(tasks) or any(group.state != "complete" for group in groups):
        return None
    seeds = {tuple(group.accuracies) for group in groups}
    if len(seeds) == 1:
        by_seed = [
            sum(group.accuracies[seed] for group in groups) / len(groups) for seed in seeds.pop()
        ]
        return summarize(by_seed)
    mean = sum(group.summary.mean for group in groups) / len(groups)
    return Summary(min(len(group.accuracies) for group in groups), mean, math.nan, math.nan)
