"""The jobs of a sweep: their commands in `jobs.txt`, the state of each, and the choice by validation.

    python run_lra.py --config=configs/listops.py:softmax --config.train.seed=0 --workdir=runs/a/softmax-seed0

Each line of the file is the command of one run. Lines may be edited, added and removed. The state of a job
is read from its run folder and its log, `logs/NAME.log`: the output of its processes, a lock, and exit codes.
The processes of a job inherit the lock, so it is held until they end, even if the sweep itself was killed.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import os
import re
import shlex
import signal
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from cli.commands import message_of
from dataprep.archives import decode
from nystromformer_jax.support.durable import read_json, write_bytes
from reporting.runs import check_numbers, curve_of, read_metrics

# Flags of runs that do not evaluate the test set: until their setting is chosen, and never.
NO_TEST, NEVER_TEST = "--notest", "--test=false"
HEADER = (
    "# One job per line, the command of a run. Lines may be edited, added and removed.\n"
    "# `python run_sweep.py --workdir=FOLDER` runs the unfinished ones.\n"
)
MARK = "[run_sweep] exit code "
STOPPED = {130, 143, -signal.SIGINT, -signal.SIGTERM}  # exit codes of runs that can be resumed
TAIL_BYTES = 10_000
LAPS = 10  # number of laps whose median is the current time per step


class State(NamedTuple):
    """State of a job."""

    kind: Literal["done", "diverged", "running", "failed", "waiting"]
    text: str
    seconds_left: float | None = None  # 0 for a finished job; None if unknown
    total_seconds: float | None = None  # estimated duration of the whole run


@dataclasses.dataclass(frozen=True)
class Job:
    """Command of one run of the sweep in a folder; `--workdir` is the run's folder."""

    sweep: Path
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
    def setting_name(self) -> str:
        """Name of the setting, for tables."""
        return re.sub(r"-?seed\d+$", "", self.name) or self.name

    @property
    def is_candidate(self) -> bool:
        """True if the run does not evaluate the test set unless its setting is chosen."""
        return NO_TEST in self.command

    @property
    def result(self) -> dict[str, Any] | None:
        """Content of `result.json`; None if the run is not finished, or the file is invalid."""
        with contextlib.suppress(OSError, ValueError):
            return self._read_result()
        return None

    @property
    def is_finished(self) -> bool:
        """True if the command has nothing left to do."""
        result = self.result
        if result is None:
            return False
        without_test = {NO_TEST, NEVER_TEST} & {*self.command}
        return result.get("state") != "validated" or bool(without_test)

    def with_test(self) -> "Job":
        """Returns the job that also evaluates the test set."""
        return Job(self.sweep, tuple(word for word in self.command if word != NO_TEST))

    @property
    def log(self) -> Path:
        """The log of the job."""
        return self.sweep / "logs" / f"{self.name}.log"

    def open_log(self) -> IO[bytes] | None:
        """Opens the log for appending and locks it; returns None if a process of the job still runs."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = self.log.open("ab", buffering=0)
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.close()
            return None
        return log

    def state(self, *, is_chosen: bool = False, has_ended: bool = False) -> State:
        """Returns the state; a run with an invalid file has failed.

        `is_chosen` is True for a candidate that was chosen, and whose test set is not evaluated yet. With
        `has_ended`, a process that still holds the lock, such as a child of the run, does not count.
        """
        try:
            return self._state(is_chosen, is_running=not has_ended and self._is_running())
        except (OSError, ValueError) as error:
            return State("failed", message_of(error))

    def _flag(self, name: str) -> str:
        prefix = f"--{name}="
        return next(
            (word.removeprefix(prefix) for word in self.command if word.startswith(prefix)), ""
        )

    def _read_result(self) -> dict[str, Any] | None:
        file = self.folder / "result.json"
        if not file.is_file():
            return None
        result = read_json(file)
        if is_diverged(result):
            check_numbers(file, result, "step")
        elif not isinstance(result.get("valid"), dict):  # not of a language model
            check_numbers(file, result, "valid_accuracy", *{"test_accuracy"} & result.keys())
        return result

    def _state(self, is_chosen: bool, *, is_running: bool) -> State:
        result = self._read_result()
        if result is None:
            progress, *seconds = self._progress()
            if is_running:
                return State("running", progress or "starting", *seconds)
            unfinished = State("waiting", f"stopped at {progress}" if progress else "", *seconds)
        elif is_running:
            return State("running", "evaluating the test set", 0)
        elif is_diverged(result):
            return State("diverged", f"at step {result['step']:,}", 0)
        else:
            metric, value, unit = score_of(result)
            done = State("done", f"{metric} {value:.2f}{unit}", 0, result.get("train_seconds"))
            if self.is_finished and not is_chosen:
                return done
            text = f"{done.text}; chosen, the test set is not evaluated yet"
            unfinished = done._replace(kind="waiting", text=text)
        if error := self._failure(STOPPED | {0} if result else STOPPED):
            return unfinished._replace(kind="failed", text=error)
        return unfinished

    def _is_running(self) -> bool:
        """Returns True if a process of the job holds the lock."""
        if not self.log.is_file():
            return False
        with self.log.open("rb") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _failure(self, expected: Iterable[int]) -> str:
        """Returns a sentence if the last start ended with an exit code that is not `expected`."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            *_, before, last = [
                "",
                *re.split(r"[\r\n]+", log.read().decode(errors="replace").strip()),
            ]
        if not last.startswith(MARK) or (code := int(last.removeprefix(MARK))) in expected:
            return ""
        said = "" if MARK in before else before.strip()
        if code < 0:
            last = f"; the last line of its log: {said}" if said else ""
            return f"killed by {signal.Signals(-code).name}{last}"
        return (said or f"exit code {code}") if code else "ended without a result"

    def _progress(self) -> tuple[str, float | None, float | None]:
        """Returns "step N of M" or "step N", the seconds left and those of the whole run, if known."""
        file = self.folder / "config.json"
        if not file.is_file():
            return "", None, None
        train = read_json(file).get("train", {})
        check_numbers(file, train, "total_steps")
        metrics, speed = (read_metrics(self.folder / f"{x}.jsonl") for x in ("metrics", "speed"))
        step, total_steps = int(metrics[-1]["step"]) if metrics else 0, train["total_steps"]
        if not total_steps:  # the length of fine-tuning is in epochs
            return f"step {step:,}", None, None
        text = f"step {step:,} of {total_steps:,}"
        laps = curve_of(speed, "step_seconds")[1][-LAPS:]
        if not laps:
            return text, None, None
        seconds = statistics.median(laps)
        return text, (total_steps - step) * seconds, total_steps * seconds


def is_diverged(result: Mapping[str, Any]) -> bool:
    """Returns True for the `result.json` of a run that diverged."""
    return result.get("state") == "diverged"


def validation_of(result: Mapping[str, Any]) -> tuple[str, float]:
    """Returns the name and the value of the metric that selects checkpoints."""
    for metric, value in result.get("valid", {}).items():
        return metric, value
    return "accuracy", result["valid_accuracy"]


def score_of(result: Mapping[str, Any]) -> tuple[str, float, str]:
    """Returns the name, the value and the unit of the metric that a finished run is judged by."""
    if "test_accuracy" in result:
        return "test accuracy", 100 * result["test_accuracy"], " %"
    metric, value = validation_of(result)
    is_share = metric != "loss"  # of pretraining
    return f"validation {metric}", *((100 * value, " %") if is_share else (value, ""))


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
            job = Job(folder, tuple(words))
            if not (job.name and job.config):
                raise ValueError(f"{file}, line {number}: a job needs --config=… and --workdir=…")
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
        raise ValueError(f"{where}: two jobs have the folder name {twice}.")


def chosen_setting(jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Returns the setting with the best mean validation score; the first in case of a tie.

    Lower is better for the loss of pretraining, higher for all other scores.

    A setting with fewer diverged seeds is always better. Returns None until all jobs are finished or
    diverged, and if all diverged.
    """
    scores: dict[tuple[str, ...], list[float]] = {}
    diverged: dict[tuple[str, ...], int] = {}
    for job in jobs:
        result = job.result
        if result is None:
            return None
        scores.setdefault(job.setting, [])
        diverged.setdefault(job.setting, 0)
        if is_diverged(result):
            diverged[job.setting] += 1
        else:
            metric, value = validation_of(result)
            scores[job.setting].append(-value if metric == "loss" else value)
    finite = [setting for setting, values in scores.items() if values]
    return max(finite, key=lambda x: (-diverged[x], statistics.fmean(scores[x])), default=None)


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
    commands = {job.name: job.command for job in known}
    chosen = {job.config for job in due_tests(known)}
    new = [job for job in grid if job.name not in commands]
    for job in grid:
        if commands.get(job.name, job.command) != job.command:
            raise ValueError(
                f"{folder / 'jobs.txt'} has another command for {job.name}: pass another --workdir, or leave"
                " out the flags of the grid to run the file as it is."
            )
    for job, other in itertools.product(new, known):
        if other.config == job.config and (
            other.is_candidate != job.is_candidate
            or job.config in chosen
            or (job.is_candidate and "test_accuracy" in (other.result or {}))
        ):
            raise ValueError(
                f"{folder} already has {job.config} with other values or seeds, and the test set is"
                " evaluated for one choice of values only: pass another --workdir for a new choice."
            )
    return [*known, *new]
