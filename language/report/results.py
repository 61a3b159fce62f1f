"""Reads and validates the results of pretraining and fine-tuning runs."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import reporting.runs
from language.glue.tasks import TASKS
from nystromformer_jax.durable import read_json
from nystromformer_jax.spelling import nearest
from reporting.runs import NEUTRAL_SECTIONS, Kind, check_kinds, format_device, read_metrics
from reporting.statistics import binomial_error

NEEDED: Mapping[str, Kind] = {
    "attention": "a text",
    **dict.fromkeys(("seed", "best_step", "total_steps"), "a whole number"),
}
SPLITS = ("valid", "valid_mismatched", "test")
# Types of the keys that may be missing.
OPTIONAL: Mapping[str, Kind] = {
    "step_seconds": "a number",
    **dict.fromkeys(("parameters", *(f"{split}_examples" for split in SPLITS)), "a whole number"),
    **dict.fromkeys(("baselines", "device", "versions"), "an object"),
    **dict.fromkeys((f"{split}_standard_error" for split in SPLITS), "an object"),
}
REQUIRED_METRICS = ("mlm_accuracy", "mlm_loss")  # in a result of pretraining

# Config keys that do not affect results, like all keys in NEUTRAL_SECTIONS.
NEUTRAL = reporting.runs.NEUTRAL_KEYS | {"data.tokenizer", "init.checkpoint"}


class Scores(NamedTuple):
    """Metrics of a split, and their standard errors where known."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run(reporting.runs.Run):
    """A finished run; `task` is empty for pretraining."""

    kind: Literal["glue", "pretrain"]
    scores: Mapping[str, Scores]  # metrics of each split with labels
    setting: Mapping[str, str]  # config values by dotted key, with initialization, size and data
    result: Mapping[str, Any]  # values of `result.json`

    @property
    def model(self) -> str:
        """Name of the model: attention, number of landmarks, and initial checkpoint."""
        landmarks = self.setting.get("attention.num_landmarks")
        attention = f"{self.result['attention']}{f'-{landmarks}' if landmarks else ''}"
        init = self.setting["init"]
        if self.result.get("from_scratch"):
            return f"{attention}, from scratch"
        return f"{attention} from {init}" if init else attention

    @property
    def is_partial(self) -> bool:
        """True if the run used only a part of the examples of the task or of the training steps."""
        return bool(self.result.get("partial"))


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """Returns the finished runs at or below `folders`; see `reporting.runs.find_runs`."""
    needed = (
        "finished run of pretraining, or of fine-tuning on GLUE or IMDb: its result.json is needed"
    )
    return reporting.runs.find_runs(folders, read_run, needed)


def read_run(folder: Path) -> Run | None:
    """Returns the finished run in a folder, or None if it is of another kind: not pretraining, GLUE or IMDb.

    Raises:
      ValueError: A file of the run is invalid.
    """
    file = folder / "result.json"
    if not file.is_file():
        return None
    result = read_json(file)
    kind = result.get("kind")
    if kind not in ("glue", "pretrain"):
        return None
    task = str(result.get("task", "")) if kind == "glue" else ""
    if kind == "glue" and task not in TASKS:
        raise ValueError(f"{file}: the task {task!r} is unknown{nearest(task, TASKS)}")
    check_kinds(file, result, NEEDED, required=True)
    known = {key: value for key, value in result.items() if value is not None}
    check_kinds(file, known, OPTIONAL)
    scores = {split: _scores(file, result, split) for split in SPLITS if result.get(split)}
    for metric in TASKS[task].metrics if task else REQUIRED_METRICS:
        if "valid" not in scores or metric not in scores["valid"].values:
            raise ValueError(f"{file} is not a run's result: valid.{metric} must be a number.")
    config_file = folder / "config.json"
    config = read_json(config_file) if config_file.is_file() else {}
    return Run(
        folder=folder.resolve(),
        kind=kind,
        task=task,
        seed=result["seed"],
        scores=scores,
        config=config,
        setting={
            **_flat(config),
            "attention": result["attention"],
            "init": _origin(str(result.get("init") or "")),
            "parameters": str(result.get("parameters") or ""),  # sizes may be the checkpoint's
            "data": str(result.get("data_sha256") or "")[:8],
        }
        | ({"init.weights": str(weights)[:8]} if (weights := result.get("init_sha256")) else {}),
        metrics=read_metrics(folder / "metrics.jsonl"),
        result=result,
        device=format_device(result),
        versions=result.get("versions") or {},
    )


def _scores(file: Path, result: Mapping[str, Any], split: str) -> Scores:
    values, errors = result[split], result.get(f"{split}_standard_error") or {}
    examples = result.get(f"{split}_examples") or 0
    check_kinds(file, result, {split: "an object"})
    named = {f"{split}.{name}": value for name, value in values.items()}
    check_kinds(file, named, dict.fromkeys(named, "a number"))
    if not 0 <= values.get("accuracy", 0) <= 1:
        raise ValueError(
            f"{file}: {split}.accuracy is {values['accuracy']}; it must be between 0 and 1."
        )
    if "accuracy" in values and "accuracy" not in errors and examples:
        errors = {**errors, "accuracy": binomial_error(values["accuracy"], examples)}
    return Scores(values, errors, examples)


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns config values as text by dotted key, except keys that do not affect results."""
    return {
        f"{section}.{key}": str(value)
        for section, values in config.items()
        if isinstance(values, dict) and section not in NEUTRAL_SECTIONS
        for key, value in values.items()
        if value is not None and f"{section}.{key}" not in NEUTRAL
    }


def _origin(checkpoint: str) -> str:
    """Returns the name of the checkpoint's folder, or of the run that exported the checkpoint."""
    path = Path(checkpoint)
    if path.name == "model" and path.parent.name:
        return path.parent.name
    return path.name
