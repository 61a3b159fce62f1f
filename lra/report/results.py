"""Reads and validates run folders of the benchmark."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import reporting.runs
from lra.data import check_task, describe
from nystromformer_jax.durable import read_json
from nystromformer_jax.plugins import is_plugin
from reporting.runs import Kind, check_kinds, curve_of, format_device, read_metrics
from reporting.tables import DIVERGED, NOT_FINISHED

NEEDED: Mapping[str, Kind] = {
    "test_accuracy": "a number",
    "test_examples": "a whole number",
    "valid_accuracy": "a number",
    "best_step": "a whole number",
    "total_steps": "a whole number",
}
# Types of the keys of `result.json`, `environment.json` and `data.json` that may be missing.
OPTIONAL: Mapping[str, Kind] = {
    **dict.fromkeys(("step_seconds", "peak_bytes"), "a number"),
    "parameters": "a whole number",
    **dict.fromkeys(("baselines", "code", "device", "versions"), "an object"),
    **dict.fromkeys(("config_sha256", "data_sha256", "sha256"), "a text"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Values of `result.json`, None or empty if missing; accuracies are in [0, 1]."""

    test_accuracy: float
    test_examples: int
    valid_accuracy: float
    best_step: int
    total_steps: int
    partial: bool
    step_seconds: float | None
    peak_bytes: int | None
    parameters: int | None
    baselines: Mapping[str, float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(reporting.runs.Run):
    """A run of the benchmark."""

    speed: Sequence[Mapping[str, float]]  # lines of speed.jsonl
    # None if the run is unfinished, diverged or not evaluated on the test set.
    result: Result | None
    valid_accuracy: float | None  # of the best step, if the run is finished
    diverged_step: int | None  # step at which the loss was found to be not finite
    config_sha256: str  # empty if unknown
    data_sha256: str  # empty if unknown

    @property
    def config_argument(self) -> str:
        """Value of `--config`, "configs/TASK.py:ARGUMENT"; empty for older runs."""
        return str(self.config.get("command", {}).get("config", ""))

    @property
    def overrides(self) -> Mapping[str, Any] | None:
        """Values of `--config.KEY` by key; None for older runs."""
        found: Mapping[str, Any] | None = self.config.get("command", {}).get("overrides")
        return found

    @property
    def data_source(self) -> str:
        """Source of the data: "files", "generated" or "tfds"; empty if an own task chooses it."""
        data = self.config["data"]
        chosen = str(data.get("source") or "auto")
        if chosen != "auto":
            return chosen
        return "" if is_plugin(self.task) else "files" if data.get("dir") else "generated"

    @property
    def budget_steps(self) -> int:
        """Number of steps of a complete run."""
        train = self.config["train"]
        steps = train.get("budget_steps")  # older runs do not have the key
        if not steps and is_plugin(self.task):
            steps = train.get("total_steps", 0)
        return int(steps or describe(self.task).total_steps)

    @property
    def done_steps(self) -> int:
        """Number of completed training steps."""
        if self.result is not None:
            return self.result.total_steps
        if self.state == "validated":
            return int(self.config["train"]["total_steps"])
        if self.diverged_step is not None:
            return self.diverged_step
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def state(self) -> str:
        """State of the run.

        `complete`, `partial` (fewer steps or examples than its recipe), `validated` (the test set is not
        evaluated), `diverged` or `unfinished`.
        """
        if self.diverged_step is not None:
            return "diverged"
        if self.result is None and self.valid_accuracy is not None:
            return "validated"
        if self.result is None:
            return "unfinished"
        return "partial" if self.result.partial else "complete"

    @property
    def progress(self) -> str:
        """Number of completed steps, with the number of budgeted steps if it is larger."""
        fewer = self.done_steps < self.budget_steps
        return f"{self.done_steps:,} of {self.budget_steps:,}" if fewer else f"{self.done_steps:,}"

    @property
    def remark(self) -> str:
        """Reason besides missing steps why the run is incomplete; empty if there is none."""
        if self.state == "partial" and self.done_steps >= self.budget_steps:
            return "on fewer examples"
        return {"validated": "not tested", "unfinished": NOT_FINISHED, "diverged": DIVERGED}.get(
            self.state, ""
        )

    @property
    def step_seconds(self) -> float | None:
        """Seconds per step: the median over laps or, without laps, the mean in the result."""
        if self._laps:
            return statistics.median(self._laps.values())
        return self.result.step_seconds if self.result else None

    @property
    def step_seconds_quartiles(self) -> tuple[float, float] | None:
        """Lower and upper quartile of the seconds per step over laps."""
        if not self._laps:
            return None
        low, high = np.quantile(list(self._laps.values()), (0.25, 0.75)).tolist()
        return low, high

    @property
    def examples_per_second(self) -> float | None:
        """Examples per second of training."""
        return per_second(self.config, self.step_seconds)

    @property
    def _laps(self) -> dict[int, float]:
        """Seconds per step by the last step of each lap in `speed.jsonl`; later lines replace earlier."""
        lines = zip(*curve_of(self.speed, "step_seconds"), strict=True)
        return {step: seconds for step, seconds in lines if 0 < seconds < math.inf}

    @property
    def train_minutes(self) -> tuple[list[int], list[float]]:
        """Evaluated steps, and minutes of training up to each; empty if the run was not timed.

        The minutes are the sum of the times in `speed.jsonl`, also if the run was resumed. Compilation,
        evaluation, checkpoints, and steps that were repeated after an interruption are not counted.
        """
        timed = self._laps
        steps = sorted(timed)
        seconds = np.cumsum([timed[step] for step in steps] * np.diff(steps, prepend=0))
        evaluated = [s for s in self.curve("valid/accuracy")[0] if steps and s <= steps[-1]]
        return evaluated, (np.interp(evaluated, [0, *steps], [0, *seconds]) / 60).tolist()


def per_second(config: Mapping[str, Any], step_seconds: float | None) -> float | None:
    """Returns the training examples per second; None if the time per step is unknown."""
    batch_size = config["train"].get("batch_size")
    return batch_size / step_seconds if batch_size and step_seconds else None


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """Returns the runs of the benchmark at or below `folders`; see `reporting.runs.find_runs`."""
    needed = "run of the benchmark: config.json and metrics.jsonl are needed"
    return reporting.runs.find_runs(folders, read_run, needed)


def read_run(folder: Path) -> Run | None:
    """Reads the run in a folder; returns None if there is none, or if it is a language-model run.

    Raises:
      ValueError: A file of the run is invalid.
    """
    file = folder / "config.json"
    if not file.is_file() or not (folder / "metrics.jsonl").is_file():
        return None
    config = read_json(file)
    if "init" in config:  # pretraining and fine-tuning
        return None
    for section, key in (("data", "task"), ("attention", "name"), ("train", "seed")):
        if not isinstance(config.get(section), dict) or key not in config[section]:
            raise ValueError(f"{file} is not a run's config: {section}.{key} is missing.")
    check_kinds(file, config, dict.fromkeys(config, "an object"))
    check_kinds(file, config["data"], {"task": "a text"})
    check_kinds(file, config.get("command", {}), {"overrides": "an object"})
    whole_numbers = ("seed", "batch_size", "total_steps", "budget_steps")
    check_kinds(file, config["train"], dict.fromkeys(whole_numbers, "a whole number"))
    try:
        check_task(config["data"]["task"])
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    values, environment, data = (
        _read_optional(folder / f"{name}.json") for name in ("result", "environment", "data")
    )
    environment |= {
        key: values[key] for key in ("device", "versions", "cpu_threads", "code") if key in values
    }
    run = Run(
        folder=folder.resolve(),
        task=config["data"]["task"],
        seed=config["train"]["seed"],
        config=config,
        metrics=read_metrics(folder / "metrics.jsonl"),
        speed=read_metrics(folder / "speed.jsonl"),
        result=None,
        valid_accuracy=None,
        diverged_step=None,
        device=format_device(environment),
        # Runs of other code of a plug-in are named beside the versions.
        versions=(environment.get("versions") or {}) | _plugins(environment.get("code") or {}),
        config_sha256=values.get("config_sha256") or "",
        data_sha256=values.get("data_sha256") or data.get("sha256") or "",
    )
    if not values:
        return run
    file = folder / "result.json"
    if values.get("state") == "diverged":
        check_kinds(file, values, {"step": "a whole number"}, required=True)
        return dataclasses.replace(run, diverged_step=values["step"])
    if values.get("state") == "validated":  # by run_lra.py --notest
        check_kinds(file, values, {"valid_accuracy": "a number"}, required=True)
        _check_accuracy(file, values, "valid_accuracy")
        return dataclasses.replace(run, valid_accuracy=values["valid_accuracy"])
    result = _read_result(file, values)
    return dataclasses.replace(run, result=result, valid_accuracy=result.valid_accuracy)


def _plugins(code: Mapping[str, str]) -> dict[str, str]:
    """Returns the hashes of plug-ins in `code` of environment.json."""
    return {name: sha256 for name, sha256 in code.items() if is_plugin(name)}


def _read_optional(file: Path) -> dict[str, Any]:
    """Returns the values of a JSON file except nulls; empty if the file does not exist."""
    values = read_json(file) if file.is_file() else {}
    known = {key: value for key, value in values.items() if value is not None}
    check_kinds(file, known, OPTIONAL)
    return known


def _read_result(file: Path, values: Mapping[str, Any]) -> Result:
    check_kinds(file, values, NEEDED, required=True)
    for key in ("test_accuracy", "valid_accuracy"):
        _check_accuracy(file, values, key)
    if values["test_examples"] < 1:
        raise ValueError(
            f"{file}: test_examples is {values['test_examples']}; it must be 1 or more."
        )
    step_seconds = values.get("step_seconds")
    if step_seconds is not None and not 0 < step_seconds < math.inf:
        raise ValueError(f"{file}: step_seconds is {step_seconds}; it must be positive.")
    baselines = values.get("baselines", {})
    check_kinds(file, baselines, dict.fromkeys(baselines, "a number"))
    return Result(
        **{key: values[key] for key in NEEDED},
        partial=bool(values.get("partial")),
        step_seconds=step_seconds,
        peak_bytes=values.get("peak_bytes"),
        parameters=values.get("parameters"),
        baselines=baselines,
    )


def _check_accuracy(file: Path, values: Mapping[str, Any], key: str) -> None:
    if not 0 <= values[key] <= 1:
        raise ValueError(f"{file}: {key} is {values[key]}; an accuracy is between 0 and 1.")
