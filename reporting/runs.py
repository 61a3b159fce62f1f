"""Reads folders of runs into one table: a row per run, with its config, its result and its curves."""

import json
import math
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from nystromformer_jax.support.durable import read_json, read_record
from reporting.records import RECORDED, RENAMED, setting_of, short_key

Kind = Literal["lra", "pretrain", "glue", "finetune"]
# Preference among runs of the same setting and seed.
STATES = ("complete", "partial", "validated", "diverged", "unfinished")


def read_runs(
    folders: Iterable[Path], kinds: Sequence[Kind], description: str
) -> tuple[pd.DataFrame, list[str]]:
    """Returns the runs of some `kinds` at or below `folders`, and a sentence for each that was left out.

    Of the runs of one task, setting and seed, the most complete is kept. Columns, of which a value may be
    missing:

    folder, name         the folder, and the last parts of its path that no other run has
    kind, task, seed, attention, label, recipe, command
    state                complete (also after an early stop), partial (set to fewer steps or examples than
                         its recipe), validated (the test set is not evaluated), diverged or unfinished
    done_steps           completed training steps
    step_seconds         median over laps
    metrics              lines of `metrics.jsonl`
    setting              see `records.setting_of`; with the hash of the data
    config.SECTION.KEY   values of the config
    others               keys of `result.json`, nested keys with dots

    Symbolic links below a folder are not followed.

    Raises:
      FileNotFoundError: A folder does not exist or contains no such run.
      ValueError: A file of a run is invalid.
    """
    found: dict[Path, dict[str, Any]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"The folder {folder} does not exist: pass a folder of runs.")
        own = {}
        for place, below, files in os.walk(folder):
            if "config.json" in files and (row := _read_run(Path(place), kinds)):
                own[Path(place).resolve()] = row
                below.clear()
        if not own:
            raise FileNotFoundError(
                f"{folder} contains no {description}; pass --workdir's folder, or one above it."
            )
        found |= own
    names = _unique_names(sorted(found))
    runs = pd.DataFrame([{**found[folder], "name": name} for folder, name in names.items()])
    order = [(STATES.index(s), -n) for s, n in zip(runs["state"], runs["done_steps"], strict=True)]
    runs = runs.assign(order=order).sort_values(["order", "folder"]).drop(columns="order")
    kept = runs.groupby(["kind", "task", "setting", "seed"])["folder"].transform("first")
    is_kept = runs["folder"] == kept
    left_out = [
        f"{display(folder)} is left out: {display(other)} has the same task, setting and seed."
        for folder, other in zip(runs["folder"][~is_kept], kept[~is_kept], strict=True)
    ]
    return runs[is_kept], left_out


def unique_labels(groups: pd.DataFrame) -> list[str]:
    """Returns the labels of groups, each unique within its task.

    Of groups with the same label, the first keeps it. The others name values that differ from those of the
    group with this label, as few as tell them apart, those of the training first.
    """
    taken: dict[tuple[str, str], Mapping[str, Any]] = {}
    for group in groups.itertuples():
        own, label = dict(group.setting), group.label
        while (holder := taken.get((group.task, label))) is not None:
            keys = own.keys() | holder.keys()
            words = (
                f"{short_key(key, keys)}={str(own.get(key))[:20]}"
                for key in sorted(keys, reverse=True)
                if own.get(key) != holder.get(key)
            )
            label += f", {next((word for word in words if word not in label), len(taken))}"
        taken[group.task, label] = own
    return [label for _, label in taken]


def curve_of(metrics: Iterable[Mapping[str, float]], metric: str) -> tuple[list[int], list[float]]:
    """Returns the steps and values of a metric, from the lines of a `metrics.jsonl`."""
    points = [(int(line["step"]), line[metric]) for line in metrics if metric in line]
    return [step for step, _ in points], [value for _, value in points]


def laps_of(speed: Iterable[Mapping[str, float]]) -> dict[int, float]:
    """Returns the seconds per step by the last step of each lap; later lines replace earlier ones."""
    lines = zip(*curve_of(speed, "step_seconds"), strict=True)
    return {step: seconds for step, seconds in lines if 0 < seconds < math.inf}


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
            value = dict(json.loads(line))
            check_numbers(file, value, *value, "step")
        except (ValueError, TypeError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{file}, line {number}, is not a line of metrics: {error}") from None
        values.append(value)
    return values


def check_numbers(file: Path, values: Mapping[str, Any], *keys: str) -> None:
    """Raises ValueError unless each key has a number; the message names the `file`."""
    for key in keys:
        if (value := values.get(key)) is None:
            raise ValueError(f"{file}: {key} is missing; it must be a number.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or (isinstance(value, int) and abs(value) >= 2**63):
            raise ValueError(f"{file}: {key} must be a number, not {value!r:.50}.")


def format_device(environment: Mapping[str, Any]) -> str:
    """Returns the devices of a run, such as "1 × cpu, 2 threads"; empty if unknown."""
    device, threads = environment.get("device") or {}, environment.get("cpu_threads")
    if not {"count", "kind"} <= set(device):
        return ""
    noun = "thread" if threads == 1 else "threads"
    cpu = f", {threads} {noun}" if device["kind"] == "cpu" and threads else ""
    return f"{device['count']} × {device['kind']}{cpu}"


def _read_run(folder: Path, kinds: Sequence[Kind]) -> dict[str, Any] | None:
    """Returns the row of the run in a folder, or None if there is none of these kinds."""
    file = folder / "config.json"
    if not {"data", "train"} <= read_json(file).keys():  # of another program
        return None
    config, file_of_result = read_record(folder), folder / "result.json"
    result = read_json(file_of_result) if file_of_result.is_file() else {}
    environment, hashes = config.pop("environment", {}), config.pop("hashes", {})
    kind = _kind_of(config)
    if kind not in kinds or (kind == "lra" and not (folder / "metrics.jsonl").is_file()):
        return None
    for section, key in (("data", "max_len"), ("attention", "name"), ("train", "seed")):
        if not isinstance(config.get(section), dict) or key not in config[section]:
            raise ValueError(f"{file} is not the config of a run: {section}.{key} is missing.")
    check_numbers(file, config["train"], "seed")
    metrics = read_metrics(folder / "metrics.jsonl")
    state = _state(folder / "result.json", kind, result)
    environment = environment | {key: value for key, value in result.items() if value is not None}
    sha256 = str(environment.get("data_sha256") or hashes.get("sha256") or "")
    found: dict[str, Any] = {"data.sha256": sha256}
    if kind != "lra":  # what a checkpoint of unknown size and weights brings
        found |= {f"init.{key}": result.get(key) for key in ("parameters", "init_sha256")}
    settings = setting_of(config) | {key: value for key, value in found.items() if value}
    laps = laps_of(read_metrics(folder / "speed.jsonl"))
    step_seconds = list(laps.values()) or [result.get("step_seconds") or math.nan]
    last = metrics[-1]["step"] if metrics else 0
    versions, recipe = environment.get("versions") or {}, str(config.get("recipe", ""))
    return {
        **_flat(result),
        "folder": folder.resolve(),
        "kind": kind,
        "task": str(config["data"].get("task", "")),
        "seed": config["train"]["seed"],
        "attention": config["attention"]["name"],
        "label": config["attention"]["name"],  # of a run that has no record
        "command": "",
        **{key: str(config[key]) for key in RECORDED if key in config},
        "recipe": RENAMED.get(recipe, recipe),
        "state": state,
        "done_steps": int(
            result.get("step") or result.get("last_step") or result.get("total_steps") or last
        ),
        "metrics": metrics,
        "setting": tuple(sorted(settings.items())),
        "device": format_device(environment),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "data_sha256": sha256,
        "baselines": result.get("baselines") or {},
        "step_seconds": statistics.median(step_seconds),
        **{
            f"config.{name}.{key}": value
            for name, own in config.items()
            if isinstance(own, dict)
            for key, value in own.items()
        },
    }


def _kind_of(config: Mapping[str, Any]) -> Kind:
    if "init" not in config:
        return "lra"
    if "objective" in config:
        return "pretrain"
    is_glue = isinstance(config["data"], dict) and "task" in config["data"]
    return "glue" if is_glue else "finetune"


def _state(file: Path, kind: Kind, result: Mapping[str, Any]) -> str:
    """Returns the state of a run by its result, whose numbers are validated."""
    if not result:
        return "unfinished"
    if result.get("state") == "diverged":
        check_numbers(file, result, "step")
        return "diverged"
    needed = {"test_accuracy": 1, "valid_accuracy": 1, "test_examples": math.inf}
    if result.get("state") == "validated":
        needed = {"valid_accuracy": 1}
    if kind != "lra":
        needed = {}
        if not isinstance(result.get("valid"), dict):
            raise ValueError(f"{file} is not the result of a run: valid is missing.")
        check_numbers(file, result["valid"], *result["valid"])
    check_numbers(file, result, *needed, "best_step", "total_steps")
    for key, largest in needed.items():
        if not 0 <= result[key] <= largest:
            raise ValueError(f"{file}: {key} is {result[key]}; it must be from 0 to {largest}.")
    if result.get("state") == "validated":
        return "validated"
    return "partial" if result.get("partial") else "complete"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        is_nested = isinstance(value, Mapping)
        found |= _flat(value, f"{prefix}{key}.") if is_nested else {prefix + key: value}
    return found


def _unique_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Returns the last parts of each path, as many as are needed to tell it from the others."""
    counts = Counter(
        folder.parts[-count:] for folder in folders for count in range(1, 1 + len(folder.parts))
    )
    names = {}
    for folder in folders:
        ends = (folder.parts[-count:] for count in range(1, 1 + len(folder.parts)))
        names[folder] = "/".join(next((end for end in ends if counts[end] == 1), folder.parts))
    return names


def display(folder: Path) -> str:
    """Returns the path relative to the current folder if it is below it, else the full path."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
