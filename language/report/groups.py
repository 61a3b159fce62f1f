"""Runs of one setting that differ in their seeds alone: what tables have rows and cells for."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.run_files import shown
from harness.statistics import t_interval
from language.glue.tasks import TASKS
from language.report.results import Run


class Cell(NamedTuple):
    """A metric over seeds, as it is stored: accuracies in [0, 1]. NaN where something is not known.

    Args:
      n: seeds.
      mean: over them.
      deviation: the standard deviation over seeds, NaN for one.
      half_width: of the 95 % Student t interval, NaN for one.
      error: the metric's own standard error, over examples; the mean over seeds.
    """

    n: int
    mean: float
    deviation: float
    half_width: float
    error: float


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one task and setting, sorted by seed; `label` tells it from the others of its task."""

    task: str
    model: str
    label: str
    runs: tuple[Run, ...]

    @property
    def is_partial(self) -> bool:
        """Whether a run saw (or, fine-tuned, scored) fewer examples than there are, or too few steps."""
        return any(run.is_partial for run in self.runs)

    def cell(self, split: str, metric: str) -> Cell | None:
        """One metric over the seeds, or None where a run has none."""
        scores = [run.scores.get(split) for run in self.runs]
        known = [found for found in scores if found and metric in found.values]
        if len(known) < len(self.runs):
            return None
        values = [found.values[metric] for found in known]
        mean, half_width = t_interval(values)
        deviation = statistics.stdev(values) if len(values) > 1 else math.nan
        error = statistics.fmean(found.errors.get(metric, math.nan) for found in known)
        return Cell(len(values), mean, deviation, half_width, error)


def group_runs(runs: Iterable[Run]) -> tuple[list[Group], list[str]]:
    """Puts runs that differ by their seed alone together.

    Returns:
      The groups, by task in the table's order, then by label; and a sentence for every run that was left
      out, because another has its setting and seed.
    """
    found: dict[tuple[object, ...], dict[int, Run]] = {}
    left_out = []
    for run in sorted(runs, key=lambda run: (-run.result["total_steps"], str(run.folder))):
        key = (run.kind, run.task, run.is_partial, *sorted(run.setting.items()))
        first = found.setdefault(key, {}).setdefault(run.seed, run)
        if first is not run:
            left_out.append(
                f"{shown(run.folder)} is left out: {shown(first.folder)} has the same task, setting and"
                " seed."
            )
    members = [tuple(own[seed] for seed in sorted(own)) for own in found.values()]
    groups = []
    for own in members:
        rivals = [
            other
            for other in members
            if (other[0].task, other[0].model) == (own[0].task, own[0].model)
        ]
        words = ", ".join([own[0].model, *_differences(own[0], [other[0] for other in rivals])])
        groups.append(Group(own[0].task, own[0].model, words, own))
    order = {task: place for place, task in enumerate(TASKS)}
    return sorted(groups, key=lambda group: (order.get(group.task, -1), group.label)), left_out


def best(groups: Sequence[Group]) -> Group:
    """Of several settings of one model on one task: whole runs before partial ones, then by validation."""
    metric = TASKS[groups[0].task].select_by

    def rank(group: Group) -> tuple[bool, float]:
        cell = group.cell("valid", metric)
        return not group.is_partial, cell.mean if cell else -math.inf

    return max(groups, key=rank)


def _differences(run: Run, others: Sequence[Run]) -> list[str]:
    """In what a setting differs from others of its model."""
    keys = sorted({key for other in others for key in other.setting} | set(run.setting))
    return [
        f"{key.rpartition('.')[2]}={run.setting.get(key, 'default')}"
        for key in keys
        if len({other.setting.get(key) for other in others}) > 1
    ]
