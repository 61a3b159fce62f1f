"""Gains of pretraining: compares fine-tuned models with models trained from scratch."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from language.glue.tasks import TASKS
from language.report.groups import Group
from language.report.results import Run
from language.tasks.sequences import read_predictions
from reporting.tables import Table

# Keys of the settings that may differ between the two.
START = ("init", "init.from_scratch", "init.weights")


class Gain(NamedTuple):
    """Accuracies in [0, 1] of a pretrained model and the model from scratch, on the same examples."""

    task: str
    pretrained: Group
    scratch: Group
    seeds: tuple[int, ...]  # seeds of both groups
    examples: int
    accuracies: tuple[float, float]  # pretrained and from scratch, means over seeds
    error: float  # standard error of the paired difference over examples

    @property
    def difference(self) -> float:
        """Accuracy with pretraining minus accuracy from scratch."""
        return self.accuracies[0] - self.accuracies[1]


def find_gains(groups: Sequence[Group]) -> list[Gain]:
    """Returns the gain for each pair of groups that have predictions and differ only in initialization.

    Raises:
      ValueError: Predictions are invalid or belong to different examples.
    """
    tuned = [group for group in groups if group.task]
    found = [
        _gain(pretrained, scratch)
        for scratch in filter(_from_scratch, tuned)
        for pretrained in itertools.filterfalse(_from_scratch, tuned)
        if (pretrained.task, _setting(pretrained)) == (scratch.task, _setting(scratch))
    ]
    return [gain for gain in found if gain]


def table(gains: Sequence[Gain]) -> Table:
    """Returns a table with one row per gain, in percent."""
    rows = [
        {
            "task": TASKS[gain.task].title,
            "model": gain.pretrained.label,
            "seeds": ", ".join(map(str, gain.seeds)),
            "examples": f"{gain.examples:,}",
            "from scratch, %": f"{100 * gain.accuracies[1]:.2f}",
            "pretrained, %": f"{100 * gain.accuracies[0]:.2f}",
            "difference ± s.e.": f"{100 * gain.difference:+.2f} ± {100 * gain.error:.2f}",
        }
        for gain in gains
    ]
    return Table.from_rows({"": rows})


def numbers(gain: Gain) -> dict[str, Any]:
    """Returns a gain as JSON values."""
    labels = {"pretrained": gain.pretrained.label, "scratch": gain.scratch.label}
    return gain._asdict() | labels | {"difference": gain.difference}


def _gain(pretrained: Group, scratch: Group) -> Gain | None:
    """Returns the gain over the shared seeds; None without shared seeds or without predictions."""
    ours, theirs = ({run.seed: run for run in group.runs} for group in (pretrained, scratch))
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    answers = [[_correct(runs[seed]) for seed in seeds] for runs in (ours, theirs)]
    if not seeds or not all(own for runs in answers for own in runs):
        return None
    names = answers[0][0].keys()
    if any(own.keys() != names for runs in answers for own in runs):
        runs = ", ".join(run.name for run in (*pretrained.runs, *scratch.runs))
        raise ValueError(f"{runs} predicted different examples; compare runs on the same data.")
    one, other = (
        np.mean([[own[name] for name in names] for own in runs], axis=0) for runs in answers
    )
    differences = one - other
    error = math.nan
    if len(differences) > 1:
        error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
    accuracies = (float(one.mean()), float(other.mean()))
    return Gain(pretrained.task, pretrained, scratch, seeds, len(differences), accuracies, error)


def _correct(run: Run) -> Mapping[str, np.bool]:
    """Returns {example id: True if correct} on the test set if it was scored, else on the validation set.

    The result is empty for regression, and without a file of labeled predictions.
    """
    task = TASKS[run.task]
    split = "test" if "test" in run.scores else "valid"
    file = Path(run.folder, "predictions", task.file_name(split))
    if task.is_regression or not file.is_file():
        return {}
    ids, predictions, labels = read_predictions(task, file)
    if labels is None:
        return {}
    right: npt.NDArray[np.bool] = predictions == labels
    return dict(zip(ids.tolist(), right, strict=True))


def _from_scratch(group: Group) -> bool:
    return bool(group.runs[0].result.get("from_scratch"))


def _setting(group: Group) -> dict[str, str]:
    setting = group.runs[0].setting
    return {key: value for key, value in setting.items() if key not in START}
