"""Runs of one task and one setting: a cell of the table, with as many values as seeds."""

import dataclasses
import re
import statistics
from collections.abc import Hashable, Iterable, Sequence

from harness.run_files import shown
from harness.statistics import Summary, binomial_error, summarize
from lra.report.labels import label_settings, setting_of
from lra.report.published import TITLES
from lra.report.results import Run
from lra.report.standard import Setting


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ by their seed alone, sorted by it."""

    task: str
    attention: str  # its label among all attentions
    label: str  # its own, among the groups of its task
    setting: Setting
    runs: tuple[Run, ...]

    @property
    def scored(self) -> list[Run]:
        """The finished runs whose results make the group's numbers: the whole ones, where there are any."""
        whole = [run for run in self.runs if run.state == "whole"]
        return whole or [run for run in self.runs if run.state == "partial"]

    @property
    def state(self) -> str:
        """As of a run; `whole` as soon as one is."""
        return self.scored[0].state if self.scored else "unfinished"

    @property
    def accuracies(self) -> dict[int, float]:
        """Test accuracy in percent, by seed."""
        return {run.seed: 100 * run.result.test_accuracy for run in self.scored if run.result}

    @property
    def summary(self) -> Summary:
        """Over seeds; of a group that has a scored run."""
        return summarize(list(self.accuracies.values()))

    @property
    def binomial_error(self) -> float:
        """Of the mean, in percentage points; seeds share their test set, so that more do not lower it."""
        examples = [run.result.test_examples for run in self.scored if run.result]
        return 100 * binomial_error(self.summary.mean / 100, min(examples))

    @property
    def examples_per_second(self) -> float | None:
        """The mean over the runs that were timed."""
        return _mean([run.result.examples_per_second for run in self.runs if run.result])

    @property
    def step_seconds(self) -> float | None:
        """The mean over the runs that were timed."""
        return _mean([run.result.step_seconds for run in self.runs if run.result])

    @property
    def peak_bytes(self) -> int | None:
        """The largest of the runs."""
        return (
            max((run.result.peak_bytes or 0 for run in self.runs if run.result), default=0) or None
        )

    @property
    def devices(self) -> str:
        """What the runs ran on."""
        return ", ".join(sorted({run.device for run in self.runs if run.device}))

    @property
    def progress(self) -> str:
        """The steps of its runs."""
        runs = self.scored or self.runs
        return "; ".join(dict.fromkeys(run.progress for run in runs))

    @property
    def shortfalls(self) -> dict[str, list[int]]:
        """What its runs that are not whole have done, with their seeds."""
        found: dict[str, list[int]] = {}
        for run in self.runs:
            if run.state != "whole":
                remark = f", {run.remark}" if run.remark else ""
                found.setdefault(f"{run.progress} steps{remark}", []).append(run.seed)
        return found

    @property
    def budget(self) -> tuple[Hashable, ...]:
        """What two groups must have in common to be compared."""
        keys = (
            "train.total_steps",
            "train.batch_size",
            "data.examples",
            "eval.max_examples",
            "data.sha256",
        )
        return (self.task, self.state, *(self.setting.get(key) for key in keys))


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Puts runs that differ by their seed alone together.

    Returns:
      The groups, sorted by task, then by how much was run of their label; and a sentence for every run
      that was left out, because another has its setting and seed.
    """
    found: dict[tuple[Hashable, ...], dict[int, Run]] = {}
    settings: dict[tuple[Hashable, ...], Setting] = {}
    left_out = []
    known = _known_data(runs)
    order = {"whole": 0, "partial": 1, "unfinished": 2}
    for run in sorted(runs, key=lambda run: (order[run.state], -run.done_steps, str(run.folder))):
        setting = setting_of(run.config, run.task, known[run.folder])
        key = tuple(sorted(setting.items(), key=lambda item: item[0]))
        settings[key] = setting
        first = found.setdefault(key, {}).setdefault(run.seed, run)
        if first is not run:
            left_out.append(
                f"{shown(run.folder)} is left out: {shown(first.folder)} has the same task, setting and"
                " seed."
            )
    members = [tuple(sorted(found[key].values(), key=lambda run: run.seed)) for key in found]
    labels = label_settings(
        [settings[key] for key in found],
        [len(runs) for runs in members],
        [runs[0].budget_steps for runs in members],
    )
    groups = [
        Group(runs[0].task, *label, settings[key], runs)
        for key, label, runs in zip(found, labels, members, strict=True)
    ]
    ranks = {label: rank for rank, label in enumerate(labels_of(groups))}
    return sorted(groups, key=lambda group: (task_rank(group.task), ranks[group.label])), left_out


def labels_of(groups: Iterable[Group]) -> list[str]:
    """The labels, sorted as `rank` does."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.label, []).append(group)
    return sorted(found, key=lambda label: rank(label, found[label]))


def rank(label: str, groups: Iterable[Group]) -> tuple[Hashable, ...]:
    """Sorts labels: those of most whole tasks first, then of most runs, then 32 before 256."""
    own = list(groups)
    whole = sum(group.state == "whole" for group in own)
    digits = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", label)]
    return (-whole, -sum(len(group.runs) for group in own), *digits)


def tasks_of(groups: Iterable[Group]) -> list[str]:
    """The tasks, the benchmark's first."""
    return sorted({group.task for group in groups}, key=task_rank)


def task_rank(task: str) -> tuple[int, str]:
    """The benchmark's order, then the alphabet's."""
    return (list(TITLES).index(task) if task in TITLES else len(TITLES), task)


def _known_data(runs: Sequence[Run]) -> dict[object, str]:
    """The hash of each run's data; one that does not say it has that of the only ones of its setting."""
    hashes: dict[object, set[str]] = {}
    for run in runs:
        own = hashes.setdefault(_without_data(run), set())
        if run.data_sha256:
            own.add(run.data_sha256)
    known: dict[object, str] = {}
    for run in runs:
        candidates = hashes[_without_data(run)]
        only = next(iter(candidates)) if len(candidates) == 1 else ""
        known[run.folder] = run.data_sha256 or only
    return known


def _without_data(run: Run) -> Hashable:
    return tuple(sorted(setting_of(run.config, run.task).items(), key=lambda item: item[0]))


def _mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known."""
    known = [value for value in values if value]
    return statistics.fmean(known) if known else None
