"""Runs of one setting: those that differ in their seed alone."""

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

from reporting.runs import R


def group_by_setting(
    runs: Iterable[R], setting_key: Callable[[R], Hashable]
) -> tuple[list[tuple[R, ...]], list[str]]:
    """Groups runs that differ in their seed alone.

    Args:
      runs: Runs, sorted by preference: of two with the same setting and seed the first is taken.
      setting_key: Returns what the runs of a group have in common.

    Returns:
      The groups, each sorted by seed, and a sentence for every run that was left out.
    """
    found: dict[Hashable, dict[int, R]] = {}
    left_out = []
    for run in runs:
        first = found.setdefault(setting_key(run), {}).setdefault(run.seed, run)
        if first is not run:
            left_out.append(
                f"{display_path(run.folder)} is left out: {display_path(first.folder)} has the same"
                " task, setting and seed."
            )
    return [tuple(own[seed] for seed in sorted(own)) for own in found.values()], left_out


def display_path(folder: Path) -> str:
    """Returns the path relative to the current folder if it is below, else the whole path."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
