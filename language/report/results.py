"""Finished runs as they lie on the disk: found, read, and checked at the door."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.environments import device_words
from harness.figures import curve_of
from harness.run_files import read_metrics, read_object
from harness.spelling import nearest
from harness.statistics import binomial_error
from language.glue.tasks import TASKS

SPLITS = ("valid", "valid_mismatched", "test")
PRETRAINING = ("mlm_accuracy", "mlm_loss")  # what a result of pretraining must have

# What does not make a setting: places, and how a run was done, not what.
ASIDE = (
    "data.dir",
    "data.source",
    "data.tokenizer",
    "data.workers",
    "eval.batch_size",
    "init.checkpoint",
    "train.remat",
    "train.seed",
)
SECTIONS_ASIDE = ("mesh", "checkpoint", "log")

PASSED_OVER = ("checkpoints", "events", "model", "predictions")  # of a run's folder


class Scores(NamedTuple):
    """A split's metrics, each with its standard error where that is known."""

    values: Mapping[str, float]
    errors: Mapping[str, float]
    examples: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run.

    Args:
      folder: where it lies.
      kind: fine-tuning or pretraining.
      task: a name of `language.glue.TASKS`; empty for pretraining.
      seed: the training's.
      scores: by split, those with labels alone.
      setting: all that makes it what it is but the seed: dotted keys of its config, and where it started.
      metrics: the lines of `metrics.jsonl`.
      result: the rest of `result.json`.
    """

    folder: Path
    kind: Literal["glue", "pretrain"]
    task: str
    seed: int
    scores: Mapping[str, Scores]
    setting: Mapping[str, str]
    metrics: Sequence[Mapping[str, float]]
    result: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def model(self) -> str:
        """The attention, its landmarks, and what it started from."""
        landmarks = self.setting.get("attention.num_landmarks")
        attention = f"{self.result['attention']}{f'-{landmarks}' if landmarks else ''}"
        init = self.setting["init"]
        if self.result.get("from_scratch"):
            return f"{attention}, from scratch"
        return f"{attention} from {init}" if init else attention

    @property
    def is_partial(self) -> bool:
        """Whether it saw (or, fine-tuned, scored) fewer examples than there are, or too few steps."""
        return bool(self.result.get("partial"))

    @property
    def device(self) -> str:
        """What it ran on; empty where that is not known."""
        return device_words(self.result)

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric."""
        return curve_of(self.metrics, metric)


def find_runs(folders: Iterable[Path]) -> list[Run]:
    """The finished runs of pretraining and fine-tuning at or below `folders`, each once.

    Raises:
      FileNotFoundError: A folder is not there, or holds no such run.
      ValueError: A file of a run cannot be understood.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"there is no folder {folder}")
        runs = []
        for place, below, files in os.walk(folder):
            below[:] = [name for name in below if name not in PASSED_OVER]
            if "result.json" in files and (run := read_run(Path(place))):
                runs.append(run)
        if not runs:
            raise FileNotFoundError(
                f"{folder} holds no finished run of pretraining or fine-tuning: its result.json is"
                " needed; pass --workdir's folder, or one above it."
            )
        found |= {run.folder: run for run in runs}
    return [found[folder] for folder in sorted(found)]


def read_run(folder: Path) -> Run | None:
    """Reads a finished run; None where it is of another kind, such as the benchmark's.

    Raises:
      ValueError: A file cannot be understood.
    """
    file = folder / "result.json"
    result = read_object(file)
    kind = result.get("kind")
    if kind not in ("glue", "pretrain"):
        return None
    task = str(result.get("task", "")) if kind == "glue" else ""
    if kind == "glue" and task not in TASKS:
        raise ValueError(f"{file}: there is no task called {task!r}{nearest(task, TASKS)}")
    for key, needed in (
        ("attention", str),
        ("seed", int),
        ("best_step", int),
        ("total_steps", int),
    ):
        if not isinstance(result.get(key), needed):
            raise ValueError(f"{file} is no run's result: {key} must be of type {needed.__name__}.")
    scores = {split: _scores(file, result, split) for split in SPLITS if result.get(split)}
    needed_metrics = TASKS[task].metrics if task else PRETRAINING
    for metric in needed_metrics:
        if "valid" not in scores or metric not in scores["valid"].values:
            raise ValueError(f"{file} is no run's result: valid.{metric} must be a number.")
    config, metrics = folder / "config.json", folder / "metrics.jsonl"
    return Run(
        folder=folder.resolve(),
        kind=kind,
        task=task,
        seed=result["seed"],
        scores=scores,
        setting={
            **_flat(read_object(config) if config.is_file() else {}),
            "attention": result["attention"],
            "init": _origin(str(result.get("init") or "")),
            "data": str(result.get("data_sha256") or "")[:8],
        },
        metrics=read_metrics(metrics) if metrics.is_file() else [],
        result=result,
    )


def _scores(file: Path, result: Mapping[str, Any], split: str) -> Scores:
    values, errors = result[split], result.get(f"{split}_standard_error") or {}
    examples = result.get(f"{split}_examples") or 0
    if not isinstance(values, dict):
        raise ValueError(f"{file}: {split} must hold metrics by name, not {values!r}.")
    for name, value in values.items():
        if not isinstance(value, int | float):
            raise ValueError(f"{file}: {split}.{name} must be a number, not {value!r}.")
    if not 0 <= values.get("accuracy", 0) <= 1:
        raise ValueError(
            f"{file}: {split}.accuracy is {values['accuracy']}; it must be between 0 and 1."
        )
    if "accuracy" in values and "accuracy" not in errors and examples:
        errors = {**errors, "accuracy": binomial_error(values["accuracy"], examples)}
    return Scores(values, errors, examples)


def _flat(config: Mapping[str, Any]) -> dict[str, str]:
    """Dotted keys to values as text, without those that make no setting."""
    flat: dict[str, str] = {}
    for section, values in config.items():
        if isinstance(values, dict) and section not in SECTIONS_ASIDE:
            known = {key: value for key, value in values.items() if value is not None}
            flat |= {f"{section}.{key}": str(value) for key, value in known.items()}
    return {key: value for key, value in flat.items() if key not in ASIDE}


def _origin(checkpoint: str) -> str:
    """A checkpoint's name without its place; that of our own is the run's."""
    path = Path(checkpoint)
    return path.parent.name or path.name if path.name == "model" else path.name
