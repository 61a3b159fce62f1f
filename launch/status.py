"""The table of a sweep: the states of its jobs, statistics over seeds, the choices and the time left."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from launch.jobs import Job, State, chosen_setting, due_tests, is_diverged, score_of
from reporting.statistics import summarize


def table(jobs: Sequence[Job]) -> tuple[str, int]:
    """Returns a table of the jobs with a summary, and the exit code of `--status`.

    The exit code is 0 if all jobs are done or diverged, 1 if one failed, and 3 if others run or wait.
    """
    chosen = {job.name for job in due_tests(jobs)}
    states = {job: job.state(is_chosen=job.name in chosen) for job in jobs}
    width = max(len(job.name) for job in jobs)
    lines = []
    for job, state in states.items():
        left = ""
        if state.kind == "running" and state.seconds_left:
            left = f", {_duration(state.seconds_left)} left"
        lines.append(f"{job.name:<{width}}  {state.kind:<8}  {state.text}{left}".rstrip())
    lines += _means(jobs)
    for config in dict.fromkeys(job.config for job in jobs):
        own = [job for job in jobs if job.config == config]
        if len({job.setting for job in own}) > 1:
            lines += _best_of(own)
    found: list[str] = [state.kind for state in states.values()]
    kinds = ("done", "diverged", "running", "failed", "waiting")
    counts = ", ".join(f"{found.count(kind)} {kind}" for kind in kinds)
    code = 1 if "failed" in found else 3 if {"running", "waiting"} & {*found} else 0
    return "\n".join([*lines, "", f"Jobs: {counts}.{_total(states)}"]), code


def _best_of(jobs: Sequence[Job]) -> list[str]:
    """Returns a line about the setting that validation selects, or none before all jobs have ended."""
    best = chosen_setting(jobs)
    return [f"best by validation: {job.setting_name}" for job in jobs if job.setting == best][:1]


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
            f"{own[0].setting_name}, {len(scores)} seeds{others}: {metric} {summary.mean:.2f}{unit},"
            f" standard deviation {summary.deviation:.2f}, {interval}"
        )
    return ["", *lines] if lines else []


def _total(states: Mapping[Job, State]) -> str:
    """Returns a sentence with the time left.

    An unknown duration is estimated as the mean of the known durations of the same config.
    """
    frame = pd.DataFrame(states.values()).astype({"seconds_left": float, "total_seconds": float})
    total = frame["total_seconds"].groupby([job.config for job in states])
    left = frame["seconds_left"].fillna(total.transform("mean"))
    running, unknown = (frame["kind"] == "running").sum(), left.isna().sum()
    others = f" Not counted, of unknown duration: {unknown}." if unknown else ""
    if not left.sum():
        return others
    at_once = f", {_duration(left.sum() / running)} with {running} at once" if running > 1 else ""
    return f" Time left: {_duration(left.sum())}{at_once}.{others}"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.1f} min"
