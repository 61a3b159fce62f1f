"""Runs on disk: finding and grouping them, reading and checking their files."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

Kind = Literal["a number", "a whole number", "a text", "an object"]
_TYPES: Mapping[Kind, Any] = {
    "a number": int | float,
    "a whole number": int,
    "a text": str,
    "an object": dict,
}
# Sections of a config that do not change a run's numbers.
NEUTRAL_SECTIONS = ("mesh", "checkpoint", "log", "command")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder and the content that every report uses."""

    folder: Path  # absolute
    task: str
    seed: int
    config: Mapping[str, Any]  # sections of config.json
    metrics: Sequence[Mapping[str, float]]  # lines of metrics.jsonl
    device: str  # from `format_device`
    versions: Mapping[str, str]  # by package

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.name

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Returns steps and values of a metric."""
        return curve_of(self.metrics, metric)


R = TypeVar("R", bound=Run)


def find_runs(
    folders: Iterable[Path], read: Callable[[Path], R | None], description: str
) -> list[R]:
    """Returns the runs at or below `folders`, at any depth, sorted by path, each once.

    `read` returns the run in a folder, or None if the folder holds no run of this kind. Symbolic links
    below a folder are not followed. `description` names such runs and their files in the error message.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
    """
    found: dict[Path, R] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"folder {folder} does not exist")
        runs = []
        for place, below, _ in os.walk(folder):
            if run := read(Path(place)):
                runs.append(run)
                below.clear()
        if not runs:
            raise FileNotFoundError(
                f"{folder} holds no {description}; pass --workdir's folder, or one above it."
            )
        found |= {run.folder: run for run in runs}
    return [found[folder] for folder in sorted(found)]


def group_by_setting(
    runs: Iterable[R], setting_key: Callable[[R], Hashable]
) -> tuple[list[tuple[R, ...]], list[str]]:
    """Groups runs that differ in their seed alone, and not in their `setting_key`.

    Of two runs with the same setting and seed the first is taken.

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


def check_kinds(
    file: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind], *, required: bool = False
) -> None:
    """Raises ValueError unless the values under the keys of `kinds` have these kinds.

    Missing keys are an error only if they are `required`. Error messages name the `file`.
    """
    for key, kind in kinds.items():
        if required and key not in values:
            raise ValueError(
                f"{file} is not a run's {file.stem}: {key} is missing; it must be {kind}."
            )
        if key in values and not _is_kind(kind, values[key]):
            raise ValueError(f"{file}: {key} must be {kind}, not {values[key]!r}.")


def _is_kind(kind: Kind, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and not isinstance(value, bool)


def read_metrics(file: Path) -> list[dict[str, float]]:
    """Returns the lines of a `metrics.jsonl`; empty if the file does not exist.

    A last line that was cut while it was written is left out.

    Raises:
      ValueError: Another line is invalid.
    """
    lines = file.read_bytes().splitlines() if file.is_file() else []
    values = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if not isinstance(value, dict) or not _is_kind("a whole number", value.get("step")):
                raise ValueError("an object with a step is needed")
            for key, entry in value.items():
                if not _is_kind("a number", entry):
                    raise ValueError(f"{key} is {entry!r}, and a number is needed")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{file}, line {number}, cannot be read as metrics: {error}."
            ) from None
        values.append(value)
    return values


def curve_of(metrics: Iterable[Mapping[str, float]], metric: str) -> tuple[list[int], list[float]]:
    """Returns steps and values of a metric, from the lines of a `metrics.jsonl`."""
    points = [(int(line["step"]), line[metric]) for line in metrics if metric in line]
    return [step for step, _ in points], [value for _, value in points]


def format_device(environment: Mapping[str, Any]) -> str:
    """Returns the device of a run, such as "1 × cpu, 2 threads"; empty if unknown."""
    device, threads = environment.get("device") or {}, environment.get("cpu_threads")
    if not {"count", "kind"} <= set(device):
        return ""
    noun = "thread" if threads == 1 else "threads"
    cpu = f", {threads} {noun}" if device["kind"] == "cpu" and threads else ""
    return f"{device['count']} × {device['kind']}{cpu}"


def version_sentences(runs: Iterable[Run]) -> list[str]:
    """Returns the versions that runs had, the most common first, each with the names of its runs."""
    found: dict[str, list[str]] = {}
    for run in runs:
        words = ", ".join(f"{package} {version}" for package, version in run.versions.items())
        found.setdefault(words or "versions not known", []).append(run.name)
    most, *rare = sorted(found, key=lambda words: -len(found[words]))
    return [
        f"{'All others' if rare else 'All runs'}: {most}.",
        *(f"{', '.join(found[words])}: {words}." for words in rare),
    ]


def finite(value: Any) -> Any:
    """Returns the value with None for every number that JSON does not have, at any depth."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
