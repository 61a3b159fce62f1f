"""State of the jobs of a sweep, read from the run folders and the logs while the jobs run."""

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from launch.jobs import Job, chosen_setting, due_tests, is_diverged, validation_of
from launch.log import failure, is_running
from nystromformer_jax.support.durable import read_json
from reporting.runs import check_numbers, curve_of, read_metrics
from reporting.statistics import summarize

Kind = Literal["done", "diverged", "running", "failed", "waiting"]
LAPS = 10  # number of laps whose median is the current time per step


class State(NamedTuple):
    """State of a job."""

    kind: Kind
    text: str
    seconds_left: float | None  # 0 for a finished job; None if unknown
    total_seconds: float | None  # estimated duration of the whole run


def log_of(folder: Path, job: Job) -> Path:
    """Returns the log of a job of the sweep in `folder`."""
    return folder / "logs" / f"{job.name}.log"


def state_of(folder: Path, job: Job, *, is_chosen: bool = False) -> State:
    """Returns the state of a job of the sweep in `folder`.

    `is_chosen` is True if the job is a candidate that was chosen, and only its test set is not evaluated yet.

    Raises:
      ValueError: A file of the run is invalid.
    """
    log, result = log_of(folder, job), job.result
    progress, left, total = _progress(job.folder)
    unfinished = State("waiting", f"stopped at {progress}" if progress else "", left, total)
    if is_running(log):
        if result is not None:
            return State("running", "evaluating the test set", 0, None)
        return State("running", progress or "starting", left, total)
    if result is not None:
        if is_diverged(result):
            return State("diverged", f"at step {result['step']:,}", 0, None)
        metric, value, unit = score_of(result)
        done = State("done", f"{metric} {value:.2f}{unit}", 0, result.get("train_seconds"))
        if job.is_finished and not is_chosen:
            return done
        text = f"{done.text}; chosen, the test set is not evaluated yet"
        unfinished = done._replace(kind="waiting", text=text)
    if error := failure(log):
        return unfinished._replace(kind="failed", text=error)
    return unfinished


def score_of(result: Mapping[str, Any]) -> tuple[str, float, str]:
    """Returns the name, the value and the unit of the metric that a finished run is judged by."""
    if "test_accuracy" in result:
        return "test accuracy", 100 * result["test_accuracy"], " %"
    metric, value = validation_of(result)
    return f"validation {metric}", *((value, "") if metric == "mse" else (100 * value, " %"))


def _progress(folder: Path) -> tuple[str, float | None, float | None]:
    """Returns "step N of M", the seconds left and the seconds of the whole run, as far as they are known."""
    file = folder / "config.json"
    if not file.is_file():
        return "", None, None
    config = read_json(file)
    train = config.get("train", {})
    check_numbers(file, train, "total_steps")
    total_steps = train["total_steps"]
    metrics = read_metrics(folder / "metrics.jsonl")
    step = int(metrics[-1]["step"]) if metrics else 0
    laps = curve_of(read_metrics(folder / "speed.jsonl"), "step_seconds")[1][-LAPS:]
    seconds = statistics.median(laps) if laps else None
    left = None if seconds is None else (total_steps - step) * seconds
    return (
        f"step {step:,} of {total_steps:,}",
        left,
        None if seconds is None else total_steps * seconds,
    )


def table(folder: Path, jobs: Sequence[Job]) -> tuple[str, int]:
    """Returns a table of the jobs with a summary, and the exit code of `--status`.

    The exit code is 0 if all jobs are done or diverged, 1 if one failed, and 3 if others run or wait.
    """
    chosen = {job.name for job in due_tests(jobs)}
    states = {job: state_of(folder, job, is_chosen=job.name in chosen) for job in jobs}
    width = max(len(job.name) for job in jobs)
    rows = [
        f"{job.name:<{width}}  {state.kind:<8}  {state.text}{_left(state)}".rstrip()
        for job, state in states.items()
    ]
    found = [state.kind for state in states.values()]
    kinds: tuple[Kind, ...] = ("done", "diverged", "running", "failed", "waiting")
    counts = ", ".join(f"{found.count(kind)} {kind}" for kind in kinds)
    code = 1 if "failed" in found else 3 if {"running", "waiting"} & {*found} else 0
    lines = [*rows, *_means(jobs)]
    for config in dict.fromkeys(job.config for job in jobs if job.is_candidate):
        lines += best_of([job for job in jobs if job.config == config and job.is_candidate])
    return "\n".join([*lines, "", f"Jobs: {counts}.{_total(states)}"]), code


def best_of(jobs: Sequence[Job]) -> list[str]:
    """Returns a line about the setting that validation selects, or none before all jobs have ended."""
    best = chosen_setting(jobs)
    return [f"best by validation: {_setting_name(job)}" for job in jobs if job.setting == best][:1]


def _setting_name(job: Job) -> str:
    return re.sub(r"-?seed\d+$", "", job.name) or job.name


def _means(jobs: Sequence[Job]) -> list[str]:
    """Returns a line with mean, deviation and interval for each setting with several finished seeds."""
    lines = []
    for setting in dict.fromkeys(job.setting for job in jobs):
        own = [job for job in jobs if job.setting == setting]
        results = [job.result for job in own]
        scores = [score_of(x) for x in results if x is not None and not is_diverged(x)]
        diverged = sum(x is not None and is_diverged(x) for x in results)
        if len(scores) < 2 or len({metric for metric, _, _ in scores}) > 1:
            continue
        (metric, _, unit), summary = scores[0], summarize([value for _, value, _ in scores])
        interval = "no interval from fewer than three"
        if not math.isnan(summary.half_width):
            interval = f"95 % t-interval ± {summary.half_width:.2f}"
        others = f" and {diverged} that diverged" if diverged else ""
        lines.append(
            f"{_setting_name(own[0])}, {len(scores)} seeds{others}: {metric} {summary.mean:.2f}{unit},"
            f" standard deviation {summary.deviation:.2f}, {interval}"
        )
    return ["", *lines] if lines else []


def _left(state: State) -> str:
    if state.kind != "running" or not state.seconds_left:
        return ""
    return f", {_duration(state.seconds_left)} left"


def _total(states: Mapping[Job, State]) -> str:
    """Returns a sentence with the time left.

    An unknown duration is estimated as the mean of the known durations of the same config.
    """
    known: dict[str, list[float]] = {}
    for job, state in states.items():
        if state.total_seconds is not None:
            known.setdefault(job.config, []).append(state.total_seconds)
    seconds, unknown = 0.0, 0
    for job, state in states.items():
        left = state.seconds_left
        if left is None and job.config in known:
            left = statistics.fmean(known[job.config])
        unknown += left is None
        seconds += left or 0
    if not (seconds or unknown):
        return ""
    running = sum(state.kind == "running" for state in states.values())
    at_once = f", {_duration(seconds / running)} with {running} at once" if running > 1 else ""
    others = f" Not counted, of unknown duration: {unknown}." if unknown else ""
    return f" Time left: {_duration(seconds)}{at_once}.{others}" if seconds else others


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
