"""Runs as they lie on the disk: found, read, and checked at the door."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.environments import device_words
from harness.figures import curve_of
from harness.run_files import Kind, check_kinds, read_metrics, read_object
from lra.data import describe, name_of

NEEDED: Mapping[str, Kind] = {
    "test_accuracy": "a number",
    "test_examples": "a whole number",
    "valid_accuracy": "a number",
    "best_step": "a whole number",
}
OF_TRAINING: Mapping[str, Kind] = dict.fromkeys(
    ("seed", "total_steps", "budget_steps"), "a whole number"
)
# What an older run may be without, in `result.json`, `environment.json` or `data.json`.
YOUNGER: Mapping[str, Kind] = {
    "total_steps": "a whole number",
    "step_seconds": "a number",
    "examples_per_second": "a number",
    "peak_bytes": "a number",
    "baselines": "an object",
    "device": "an object",
    "versions": "an object",
    "config_sha256": "a text",
    "data_sha256": "a text",
    "sha256": "a text",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What `result.json` says; None, or nothing, where an older one is silent. Accuracies are in [0, 1]."""

    test_accuracy: float
    test_examples: int
    valid_accuracy: float
    best_step: int
    total_steps: int
    partial: bool
    step_seconds: float | None
    examples_per_second: float | None
    peak_bytes: int | None
    baselines: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run's folder, read. `result` is None until it has finished."""

    folder: Path
    task: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    result: Result | None
    device: str  # "1 × cpu, 2 threads"; empty where it is not known
    versions: Mapping[str, str]
    config_sha256: str
    data_sha256: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def attention(self) -> Mapping[str, Any]:
        """The attention's name and options."""
        section: Mapping[str, Any] = self.config["attention"]
        return section

    @property
    def seed(self) -> int:
        """The training's seed."""
        return int(self.config["train"]["seed"])

    @property
    def budget_steps(self) -> int:
        """The steps of a whole run."""
        steps = self.config["train"].get("budget_steps")  # the key is younger than some runs
        return int(steps or describe(self.task).total_steps)

    @property
    def done_steps(self) -> int:
        """The steps that were trained."""
        if self.result is not None:
            return self.result.total_steps
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def state(self) -> str:
        """`whole`, `partial` (fewer steps or examples than the benchmark's) or `unfinished`."""
        if self.result is None:
            return "unfinished"
        return "partial" if self.result.partial else "whole"

    @property
    def progress(self) -> str:
        """The steps, beside those of the whole budget where they were fewer."""
        fewer = self.done_steps < self.budget_steps
        return f"{self.done_steps:,} of {self.budget_steps:,}" if fewer else f"{self.done_steps:,}"

    @property
    def remark(self) -> str:
        """What is missing besides steps."""
        if self.state == "partial" and self.done_steps >= self.budget_steps:
            return "on fewer examples"
        return "not finished" if self.state == "unfinished" else ""

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric."""
        return curve_of(self.metrics, metric)


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """The run folders at or below `folders`, sorted, each once; symbolic links below are not followed.

    Runs of the language model are passed over.

    Raises:
      FileNotFoundError: A folder is not there, or holds no run.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        runs = []
        for place, below, files in os.walk(folder):
            if {"config.json", "metrics.jsonl"} <= set(files):
                below.clear()
                if not _is_of_language(Path(place)):
                    runs.append(Path(place))
        if not runs:
            raise FileNotFoundError(
                f"{folder} holds no run of the benchmark: config.json and metrics.jsonl are needed;"
                " pass --workdir's folder, or one above it."
            )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return [found[path] for path in sorted(found)]


def _is_of_language(folder: Path) -> bool:
    """Whether it is a run of pretraining or fine-tuning, whose configs say what they start from."""
    try:
        return "init" in read_object(folder / "config.json")
    except ValueError:
        return False  # `read_run` says what is wrong


def read_run(folder: Path) -> Run:
    """Reads a run's folder.

    Raises:
      FileNotFoundError: It holds no run.
      ValueError: A file of it cannot be understood.
    """
    if not (folder / "config.json").is_file() or not (folder / "metrics.jsonl").is_file():
        raise FileNotFoundError(
            f"{folder} holds no run: config.json and metrics.jsonl are needed; pass --workdir's folder."
        )
    config, file = read_object(folder / "config.json"), folder / "config.json"
    for section, key in (("data", "task"), ("attention", "name"), ("train", "seed")):
        if not isinstance(config.get(section), dict) or key not in config[section]:
            raise ValueError(f"{file} is no run's config: {section}.{key} is missing.")
    check_kinds(file, config, dict.fromkeys(config, "an object"))
    check_kinds(file, config["data"], {"task": "a text"})
    check_kinds(file, config["train"], OF_TRAINING)
    try:
        task = name_of(config["data"]["task"])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    values, environment, data = (
        _read_known(folder / f"{name}.json") for name in ("result", "environment", "data")
    )
    metrics = read_metrics(folder / "metrics.jsonl")
    environment = {**environment, **{key: values[key] for key in _ENVIRONMENT if key in values}}
    run = Run(
        folder=folder.resolve(),
        task=task,
        config=config,
        metrics=metrics,
        result=None,
        device=device_words(environment),
        versions=environment.get("versions") or {},
        config_sha256=values.get("config_sha256") or "",
        data_sha256=values.get("data_sha256") or data.get("sha256") or "",
    )
    if not values:
        return run
    return dataclasses.replace(run, result=_read_result(folder / "result.json", values, run))


def _read_known(file: Path) -> dict[str, Any]:
    """What a file that may be missing says, without what it leaves open."""
    values = read_object(file) if file.is_file() else {}
    known = {key: value for key, value in values.items() if value is not None}
    check_kinds(file, known, YOUNGER)
    return known


_ENVIRONMENT = ("device", "versions", "cpu_threads")


def _read_result(file: Path, values: Mapping[str, Any], run: Run) -> Result:
    """Checks a result's numbers, and fills in what older ones do not say."""
    for key, kind in NEEDED.items():
        if key not in values:
            raise ValueError(f"{file} is no run's result: {key} is missing; it must be {kind}.")
    check_kinds(file, values, NEEDED)
    for key in ("test_accuracy", "valid_accuracy"):
        if not 0 <= values[key] <= 1:
            raise ValueError(f"{file}: {key} is {values[key]}; an accuracy is between 0 and 1.")
    if values["test_examples"] < 1:
        raise ValueError(
            f"{file}: test_examples is {values['test_examples']}; it must be 1 or more."
        )
    baselines = values.get("baselines", {})
    check_kinds(file, baselines, dict.fromkeys(baselines, "a number"))
    steps = values.get("total_steps") or run.config["train"].get("total_steps") or run.done_steps
    partial = values.get("partial")
    return Result(
        **{key: values[key] for key in NEEDED},
        total_steps=steps,
        partial=steps < run.budget_steps if partial is None else bool(partial),
        step_seconds=values.get("step_seconds"),
        examples_per_second=values.get("examples_per_second"),
        peak_bytes=values.get("peak_bytes"),
        baselines=baselines,
    )
