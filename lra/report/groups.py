"""Groups of runs that differ only in the seed; a group is a cell of the benchmark's table."""

import dataclasses
import re
import statistics
from collections.abc import Hashable, Iterable
from pathlib import Path

from lra.report.labels import Setting, label_settings, setting_of, track_of
from lra.report.published import TITLES
from lra.report.results import Run, find_runs, per_second
from reporting.runs import group_by_setting
from reporting.statistics import Summary, binomial_error, summarize

MAX_RATIO = 1.5  # maximum ratio between times of a setting that are considered steady


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs of one task and setting that differ only in the seed, sorted by seed."""

    task: str
    attention: str  # label of the attention, shared by groups of several tasks
    label: str  # unique among the groups of the task
    setting: Setting
    runs: tuple[Run, ...]  # at least one

    @property
    def track(self) -> str:
        """Recipe of the runs; see `track_of`."""
        return track_of(self.setting)

    @property
    def scored(self) -> list[Run]:
        """Runs whose results are averaged: the complete runs or, if there are none, the partial runs."""
        complete = [run for run in self.runs if run.state == "complete"]
        return complete or [run for run in self.runs if run.state == "partial"]

    @property
    def state(self) -> str:
        """State of the group.

        `complete` or `partial` if a run is scored, `diverged` if all runs diverged, otherwise `unfinished`.
        """
        if self.scored:
            return self.scored[0].state
        return "diverged" if self.diverged == len(self.runs) else "unfinished"

    @property
    def diverged(self) -> int:
        """Number of runs that diverged."""
        return sum(run.state == "diverged" for run in self.runs)

    @property
    def accuracies(self) -> dict[int, float]:
        """Test accuracies in percent, by seed."""
        return {run.seed: 100 * run.result.test_accuracy for run in self.scored if run.result}

    @property
    def summary(self) -> Summary:
        """Summary of the accuracies; requires a scored run."""
        return summarize(list(self.accuracies.values()))

    @property
    def binomial_error(self) -> float:
        """Binomial error in percentage points; more seeds do not lower it, as they share a test set.

        For labeled tokens it counts sequences, because the answers of a sequence are not independent. If they
        were, the error would be smaller.
        """
        examples = [run.result.test_examples for run in self.scored if run.result]
        return 100 * binomial_error(self.summary.mean / 100, min(examples))

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step: the median over the finished runs; see `Run.step_seconds`."""
        return statistics.median(self._run_seconds) if self._run_seconds else None

    @property
    def examples_per_second(self) -> float | None:
        """Examples per second of training, from the median time per step."""
        return per_second(self.runs[0].config, self.step_seconds)

    @property
    def step_seconds_range(self) -> tuple[float, float] | None:
        """Range of the seconds per step, over runs or over laps, whichever is wider.

        The range over laps has the quartiles of the steadiest run: one disturbed run does not widen it.
        """

        def ratio(span: tuple[float, float]) -> float:
            return span[1] / span[0]

        quartiles = [run.step_seconds_quartiles for run in self.runs if run.result]
        spans = sorted(filter(None, quartiles), key=ratio)[:1]
        if len(self._run_seconds) > 1:
            spans.append((min(self._run_seconds), max(self._run_seconds)))
        return max(spans, key=ratio, default=None)

    @property
    def is_steady(self) -> bool:
        """False if times per step vary, as with other load or a curriculum of shorter sequences."""
        low, high = self.step_seconds_range or (1, 1)
        return high <= MAX_RATIO * low

    @property
    def _run_seconds(self) -> list[float]:
        return [run.step_seconds for run in self.runs if run.result and run.step_seconds]

    @property
    def peak_bytes(self) -> int | None:
        """Maximum peak memory over the runs."""
        return max(run.result.peak_bytes or 0 if run.result else 0 for run in self.runs) or None

    @property
    def parameters(self) -> int | None:
        """Number of parameters of the model, if a result has it."""
        found = (run.result.parameters for run in self.runs if run.result)
        return next(filter(None, found), None)

    @property
    def devices(self) -> str:
        """Names of the devices of the runs."""
        return ", ".join(sorted({run.device for run in self.runs if run.device}))

    @property
    def done_steps(self) -> int:
        """Maximum number of completed steps over the runs."""
        return max(run.done_steps for run in self.runs)

    @property
    def progress(self) -> str:
        """Completed steps of the runs, as text."""
        return "; ".join(dict.fromkeys(run.progress for run in self.scored or self.runs))

    @property
    def shortfalls(self) -> dict[str, list[int]]:
        """Seeds of the incomplete runs, by a description of the missing steps or examples."""
        found: dict[str, list[int]] = {}
        for run in self.runs:
            if run.state != "complete":
                remark = f", {run.remark}" if run.remark else ""
                found.setdefault(f"{run.progress} steps{remark}", []).append(run.seed)
        return found

    @property
    def budget(self) -> tuple[Hashable, ...]:
        """Values that must be equal for two groups to be compared."""
        keys = (
            "train.total_steps",
            "train.batch_size",
            "data.examples",
            "eval.max_examples",
            "data.sha256",
        )
        return (self.task, self.state, *(self.setting.get(key) for key in keys))


def read_groups(folders: Iterable[Path]) -> tuple[list[Group], list[str]]:
    """Returns the groups of all runs at or below `folders`.

    Returns:
      The groups, sorted by task, then by the `rank` of the label; and a sentence for each run that was
      left out because another run has the same setting and seed.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
      ValueError: A file of a run is invalid.
    """
    runs = find_runs(folders)
    settings = {
        run.folder: setting_of(run.config, run.task, run.data_sha256, run.config_argument)
        for run in runs
    }
    order = {"complete": 0, "partial": 1, "validated": 2, "diverged": 3, "unfinished": 4}
    by_preference = sorted(
        runs, key=lambda run: (order[run.state], -run.done_steps, str(run.folder))
    )
    members, left_out = group_by_setting(
        by_preference, lambda run: frozenset(settings[run.folder].items())
    )
    own = [settings[runs[0].folder] for runs in members]
    labels = label_settings(
        own, [len(runs) for runs in members], [runs[0].budget_steps for runs in members]
    )
    groups = [
        Group(runs[0].task, *label, setting, runs)
        for setting, label, runs in zip(own, labels, members, strict=True)
    ]
    ranks = {label: rank for rank, label in enumerate(labels_of(groups))}
    return sorted(groups, key=lambda group: (task_rank(group.task), ranks[group.label])), left_out


def labels_of(groups: Iterable[Group]) -> list[str]:
    """Returns the labels, sorted by `rank`."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.label, []).append(group)
    return sorted(found, key=lambda label: rank(label, found[label]))


def rank(label: str, groups: Iterable[Group]) -> tuple[Hashable, ...]:
    """Returns a sort key of labels: most complete tasks first, then most runs, then natural order."""
    own = list(groups)
    complete = sum(group.state == "complete" for group in own)
    digits = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)]
    return (-complete, -sum(len(group.runs) for group in own), *digits)


def tasks_of(groups: Iterable[Group]) -> list[str]:
    """Returns the tasks, sorted by `task_rank`."""
    return sorted({group.task for group in groups}, key=task_rank)


def task_rank(task: str) -> tuple[int, str]:
    """Returns a sort key of tasks: tasks of the benchmark in the order of `TITLES`, then others by name."""
    return (list(TITLES).index(task) if task in TITLES else len(TITLES), task)
