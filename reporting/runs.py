"""Finds and groups runs on disk, and reads and validates their files."""

import dataclasses
import json
import math
import os
from collections import Counter
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
# Sections of a config that do not change results.
NEUTRAL_SECTIONS = ("mesh", "checkpoint", "log", "command")
# Keys of other sections that are not part of a setting. All but the seed leave results unchanged.
NEUTRAL_KEYS = {
    "data.dir",
    "data.source",
    "data.workers",
    "eval.batch_size",
    "train.accumulation",  # depends on the device
    "train.cpu_accumulation",
    "train.remat",
    "train.seed",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Folder of a run and the content that all reports use."""

    folder: Path  # absolute
    task: str
    seed: int
    config: Mapping[str, Any]  # sections of config.json
    metrics: Sequence[Mapping[str, float]]  # lines of metrics.jsonl
    device: str  # from `format_device`
    versions: Mapping[str, str]  # version by package name
    name: str = ""  # set by `find_runs`: the last parts of the path that no other run has

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Returns the steps and values of a metric."""
        return curve_of(self.metrics, metric)


R = TypeVar("R", bound=Run)


def find_runs(
    folders: Iterable[Path], read: Callable[[Path], R | None], description: str
) -> list[R]:
    """Returns the distinct runs at or below `folders`, at any depth, sorted by path.

    `read` returns the run in a folder, or None if the folder holds no run of this kind. Symbolic links
    below a folder are not followed. Error messages name the runs by `description`.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
    """
    found: dict[Path, R] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"The folder {folder} does not exist: pass a folder of runs.")
        runs = []
        for place, below, _ in os.walk(folder):
            if run := read(Path(place)):
                runs.append(run)
                below.clear()
        if not runs:
            raise FileNotFoundError(
                f"{folder} contains no {description}; pass --workdir's folder, or one above it."
            )
        found |= {run.folder: run for run in runs}
    names = unique_names(sorted(found))
    return [dataclasses.replace(found[folder], name=name) for folder, name in names.items()]


def unique_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Returns the last parts of each path, as many as are needed to tell it from the others."""
    counts = Counter(
        folder.parts[-count:] for folder in folders for count in range(1, 1 + len(folder.parts))
    )
    names = {}
    for folder in folders:
        ends = (folder.parts[-count:] for count in range(1, 1 + len(folder.parts)))
        names[folder] = "/".join(next((end for end in ends if counts[end] == 1), folder.parts))
    return names


def group_by_setting(
    runs: Iterable[R], setting_key: Callable[[R], Hashable]
) -> tuple[list[tuple[R, ...]], list[str]]:
    """Groups runs that have the same `setting_key` and different seeds.

    If two runs have the same setting and seed, the first is used.

    Returns:
      The groups, each sorted by seed, and a sentence for each run that was left out.
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
    """Returns the path relative to the current folder if it is below it, else the full path."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def check_kinds(
    file: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind], *, required: bool = False
) -> None:
    """Raises ValueError unless each value has the kind that `kinds` has for its key.

    Missing keys are an error only if `required` is True. Error messages name the `file`.
    """
    for key, kind in kinds.items():
        if required and key not in values:
            raise ValueError(
                f"{file} is not a run's {file.stem}: {key} is missing; it must be {kind}."
            )
        if key in values and not _is_kind(kind, values[key]):
            raise ValueError(f"{file}: {key} must be {kind}, not {values[key]!r:.50}.")


def _is_kind(kind: Kind, value: Any) -> bool:
    if isinstance(value, int) and abs(value) >= 2**63:  # a float or an array may not hold it
        return False
    return isinstance(value, _TYPES[kind]) and not isinstance(value, bool)


def read_metrics(file: Path) -> list[dict[str, float]]:
    """Reads a `metrics.jsonl`; returns one dict per line, or no lines if the file does not exist.

    An incomplete last line is skipped.

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
                    raise ValueError(f"{key} is {entry!r:.50}, and a number is needed")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{file}, line {number}, cannot be read as metrics: {error}."
            ) from None
        values.append(value)
    return values


def curve_of(metrics: Iterable[Mapping[str, float]], metric: str) -> tuple[list[int], list[float]]:
    """Returns the steps and values of a metric, from the lines of a `metrics.jsonl`."""
    points = [(int(line["step"]), line[metric]) for line in metrics if metric in line]
    return [step for step, _ in points], [value for _, value in points]


def format_device(environment: Mapping[str, Any]) -> str:
    """Returns the devices of a run, such as "1 × cpu, 2 threads"; empty if unknown."""
    device, threads = environment.get("device") or {}, environment.get("cpu_threads")
    if not {"count", "kind"} <= set(device):
        return ""
    noun = "thread" if threads == 1 else "threads"
    cpu = f", {threads} {noun}" if device["kind"] == "cpu" and threads else ""
    return f"{device['count']} × {device['kind']}{cpu}"


def version_sentences(runs: Iterable[Run]) -> list[str]:
    """Returns a sentence per set of package versions with the names of runs, the most common set first."""
    found: dict[str, list[str]] = {}
    for run in runs:
        words = ", ".join(f"{package} {version}" for package, version in run.versions.items())
        found.setdefault(words or "versions not known", []).append(run.name)
    most, *rare = sorted(found, key=lambda words: -len(found[words]))
    return [
        f"{'All others' if rare else 'All runs'}: {most}.",
        *(f"{', '.join(found[words])}: {words}." for words in rare),
    ]


def nonfinite_to_none(value: Any) -> Any:
    """Replaces NaN and infinity with None at any depth, because JSON does not support them."""
    if isinstance(value, dict):
        return {key: nonfinite_to_none(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nonfinite_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
