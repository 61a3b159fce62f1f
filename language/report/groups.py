"""Groups of runs that differ only in the seed: rows and cells of the tables."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from language.glue.tasks import TASKS
from language.report.results import Run, find_runs
from reporting.runs import group_by_setting
from reporting.statistics import summarize


class Cell(NamedTuple):
    """Statistics of a metric over seeds; accuracies are in [0, 1], unknown numbers are NaN."""

    n: int
    mean: float
    deviation: float  # standard deviation over seeds, NaN for one seed
    half_width: float  # of the 95 % Student t interval, NaN for fewer than three seeds
    error: float  # standard error over examples, averaged over seeds


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one task and setting, sorted by seed; `label` is unique among the groups of its task."""

    task: str
    model: str
    label: str
    runs: tuple[Run, ...]

    @property
    def is_partial(self) -> bool:
        """True if any run is partial; see `Run.is_partial`."""
        return any(run.is_partial for run in self.runs)

    def cell(self, split: str, metric: str) -> Cell | None:
        """Returns a metric over the seeds, or None if it is missing in a run."""
        scores = [run.scores.get(split) for run in self.runs]
        known = [found for found in scores if found and metric in found.values]
        if len(known) < len(self.runs):
            return None
        error = statistics.fmean(found.errors.get(metric, math.nan) for found in known)
        return Cell(*summarize([found.values[metric] for found in known]), error)


def read_groups(folders: Iterable[Path]) -> tuple[list[Group], list[str]]:
    """Returns the groups of all finished runs at or below `folders`.

    Groups are sorted by task in the order of the tables, then by label. The second result has a sentence for
    each run that was left out because another run has the same setting and seed.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
      ValueError: A file of a run is invalid.
    """
    runs = find_runs(folders)
    runs.sort(key=lambda run: (-run.result["total_steps"], str(run.folder)))
    members, left_out = group_by_setting(
        runs, lambda run: (run.kind, run.task, run.is_partial, *sorted(run.setting.items()))
    )
    groups = []
    for own in members:
        kind = own[0].task, own[0].model
        peers = [other[0] for other in members if (other[0].task, other[0].model) == kind]
        groups.append(Group(*kind, ", ".join([own[0].model, *_differences(own[0], peers)]), own))
    order = {task: place for place, task in enumerate(TASKS)}
    return sorted(groups, key=lambda group: (order.get(group.task, -1), group.label)), left_out


def best(groups: Sequence[Group]) -> Group:
    """Returns the best setting of a task by validation; complete runs are preferred to partial ones."""
    metric = TASKS[groups[0].task].select_by

    def rank(group: Group) -> tuple[bool, float]:
        cell = group.cell("valid", metric)
        return not group.is_partial, cell.mean if cell else -math.inf

    return max(groups, key=rank)


def _differences(run: Run, others: Sequence[Run]) -> list[str]:
    """Returns `key=value` of `run` for each key of the settings whose value differs among `others`."""
    keys = sorted({key for other in others for key in other.setting})
    return [
        f"{key.rpartition('.')[2]}={run.setting.get(key, 'default')}"
        for key in keys
        if len({other.setting.get(key) for other in others}) > 1
    ]
