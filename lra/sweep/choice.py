"""Choice of a setting by validation accuracy; only the chosen setting is evaluated on the test set."""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from lra.sweep.jobs import Job, is_diverged

S = TypeVar("S", bound=Hashable)


def best_setting(accuracies: Mapping[S, Sequence[float | None]]) -> S | None:
    """Returns the setting with the highest mean validation accuracy; the first in case of a tie.

    None is the accuracy of a seed that diverged. A setting with fewer diverged seeds is always better.
    Returns None if every seed of every setting diverged.
    """

    def score(setting: S) -> tuple[int, float]:
        finite = [value for value in accuracies[setting] if value is not None]
        diverged = len(accuracies[setting]) - len(finite)
        return -diverged, statistics.fmean(finite) if finite else -math.inf

    best = max(accuracies, key=score)
    return best if any(value is not None for value in accuracies[best]) else None


def due_tests(jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs that evaluate the test set for the chosen settings, and have not done so yet.

    A setting is chosen per config, once all its candidates are finished or diverged.
    """
    due = []
    candidates = [job for job in jobs if job.is_candidate]
    for config in dict.fromkeys(job.config for job in candidates):
        own = [(job, job.result) for job in candidates if job.config == config]
        accuracies: dict[tuple[str, ...], list[float | None]] = {}
        for job, result in own:
            if result is None:
                break
            accuracy = None if is_diverged(result) else result["valid_accuracy"]
            accuracies.setdefault(job.setting, []).append(accuracy)
        else:
            best = best_setting(accuracies)
            due += [job.with_test() for job, _ in own if job.setting == best]
    return [job for job in due if not job.is_finished]


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs that have something left to do, then those of `due_tests`."""
    return [*(job for job in jobs if not job.is_finished), *due_tests(jobs)]


def merge(known: Sequence[Job], grid: Sequence[Job], folder: Path) -> list[Job]:
    """Returns the `known` jobs of a folder and the new jobs of `grid`.

    Raises:
      ValueError: A known job has another command, or the settings of a config cannot change any more,
        because its test set is already evaluated or one setting is chosen.
    """
    by_name = {job.name: job for job in known}
    chosen = {job.config for job in due_tests(known)}
    for job in grid:
        own = by_name.get(job.name)
        if own is not None and own != job:
            raise ValueError(
                f"{folder / 'jobs.txt'} has another command for {job.name}: pass another --workdir, or leave"
                " out the flags of the grid to run the file as it is."
            )
        for other in known if own is None else ():
            if other.config == job.config and (
                other.is_candidate != job.is_candidate
                or job.config in chosen
                or (job.is_candidate and "test_accuracy" in (other.result or {}))
            ):
                raise ValueError(
                    f"{folder} already has {job.config} with other values or seeds, and the test set is"
                    " evaluated for one choice of values only: pass another --workdir for a new choice."
                )
    return [*known, *(job for job in grid if job.name not in by_name)]
