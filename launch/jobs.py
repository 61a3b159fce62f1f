"""Jobs: the commands of many runs, the file `jobs.txt`, and the choice of a setting by validation.

    python run_lra.py --config=configs/listops.py:softmax --config.train.seed=0 --workdir=runs/a/softmax-seed0

Each line of the file is the command of one run. Lines may be edited, added and removed.
"""

import dataclasses
import math
import os
import shlex
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from dataprep.archives import decode
from nystromformer_jax.support.durable import read_json, write_bytes
from reporting.runs import check_numbers

NO_TEST = "--notest"
HEADER = (
    "# One job per line, the command of a run. Lines may be edited, added and removed.\n"
    "# `python run_sweep.py --workdir=FOLDER` runs the unfinished ones.\n"
)
S = TypeVar("S", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Job:
    """Command of one run; `--workdir` is the run's folder."""

    command: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return Path(os.path.expanduser(self._flag("workdir")))  # keeps unknown users

    @property
    def name(self) -> str:
        """Name of the folder, which is unique among the jobs."""
        return self.folder.name

    @property
    def config(self) -> str:
        """Value of `--config`: the task and the attention."""
        return self._flag("config")

    @property
    def setting(self) -> tuple[str, ...]:
        """The command without the seed and the folder; equal for the seeds of a setting."""
        varying = ("--config.train.seed=", "--workdir=")
        return tuple(word for word in self.command if not word.startswith(varying))

    @property
    def is_candidate(self) -> bool:
        """True if the run does not evaluate the test set unless its setting is chosen."""
        return NO_TEST in self.command

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of `result.json`, or None if the run is not finished.

        Raises:
          ValueError: The file is invalid.
        """
        file = self.folder / "result.json"
        if not file.is_file():
            return None
        result = read_json(file)
        if is_diverged(result):
            check_numbers(file, result, "step")
        elif not isinstance(result.get("valid"), dict):  # not of a language model
            check_numbers(file, result, "valid_accuracy", *{"test_accuracy"} & result.keys())
        return result

    @property
    def is_finished(self) -> bool:
        """True if the command has nothing left to do."""
        result = self.result
        return result is not None and (self.is_candidate or result.get("state") != "validated")

    def with_test(self) -> "Job":
        """Returns the job that also evaluates the test set."""
        return Job(tuple(word for word in self.command if word != NO_TEST))

    def _flag(self, name: str) -> str:
        prefix = f"--{name}="
        return next(
            (word.removeprefix(prefix) for word in self.command if word.startswith(prefix)), ""
        )


def is_diverged(result: Mapping[str, Any]) -> bool:
    """Returns True for the `result.json` of a run that diverged."""
    return result.get("state") == "diverged"


def validation_of(result: Mapping[str, Any]) -> tuple[str, float]:
    """Returns the name and the value of the metric that selects checkpoints."""
    for metric, value in result.get("valid", {}).items():
        return metric, value
    return "accuracy", result["valid_accuracy"]


def read_jobs(folder: Path) -> list[Job]:
    """Reads `jobs.txt`; raises ValueError if a line is not a command with `--workdir` and `--config`."""
    file, jobs = folder / "jobs.txt", []
    text = decode(file.read_bytes(), str(file), "Save it as UTF-8.")
    for number, line in enumerate(text.splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ValueError(f"{file}, line {number}: {error}.") from None
        if words:
            job = Job(tuple(words))
            if not (job.name and job.config):
                raise ValueError(
                    f"{file}, line {number}: a job is a command with --config=… and --workdir=…"
                )
            jobs.append(job)
    require_unique(jobs, file)
    return jobs


def write_jobs(folder: Path, jobs: Iterable[Job]) -> None:
    """Writes `jobs.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{shlex.join(job.command)}\n" for job in jobs)
    write_bytes(folder / "jobs.txt", (HEADER + lines).encode())


def require_unique(jobs: Sequence[Job], where: object) -> None:
    """Raises ValueError if two jobs have the same folder name."""
    names = [job.name for job in jobs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"{where}: two jobs have the folder name {twice}; folder names must differ."
        )


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


def chosen_setting(jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Returns the `best_setting` of the jobs of a config; None until all are finished or diverged."""
    accuracies: dict[tuple[str, ...], list[float | None]] = {}
    for job in jobs:
        result = job.result
        if result is None:
            return None
        value = None if is_diverged(result) else validation_of(result)[1]
        accuracies.setdefault(job.setting, []).append(value)
    return best_setting(accuracies)


def due_tests(jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs that evaluate the test set for the chosen settings, and have not done so yet.

    A setting is chosen per config, once all its candidates are finished or diverged.
    """
    due = []
    candidates = [job for job in jobs if job.is_candidate]
    for config in dict.fromkeys(job.config for job in candidates):
        own = [job for job in candidates if job.config == config]
        best = chosen_setting(own)
        due += [job.with_test() for job in own if job.setting == best]
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
