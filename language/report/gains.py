"""Gains of pretraining: fine-tuned models beside the same from scratch, on the same examples."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from language.glue.submission import file_name, read_predictions
from language.glue.tasks import TASKS
from language.report.groups import Group
from language.report.results import Run
from reporting.tables import Table

START = ("init", "init.from_scratch")  # keys of a setting in which the two may differ


class Gain(NamedTuple):
    """Accuracies of a pretrained model and of the same from scratch, in [0, 1].

    Attributes:
      task: A name of `TASKS`.
      pretrained: Group of the pretrained model.
      scratch: Group of the model from scratch.
      seeds: Seeds that both groups have.
      examples: Number of examples.
      accuracies: Accuracy pretrained and from scratch, means over seeds.
      error: Standard error of their paired difference over examples.
    """

    task: str
    pretrained: Group
    scratch: Group
    seeds: tuple[int, ...]
    examples: int
    accuracies: tuple[float, float]
    error: float

    @property
    def difference(self) -> float:
        """Accuracy of the pretrained model minus that from scratch."""
        return self.accuracies[0] - self.accuracies[1]


def find_gains(groups: Sequence[Group]) -> list[Gain]:
    """Returns the gains of all pairs of groups that differ in their start alone and kept predictions.

    Raises:
      ValueError: Predictions are invalid or on other examples.
    """
    found = []
    for scratch in groups:
        for other in groups:
            if not scratch.task or not _from_scratch(scratch) or _from_scratch(other):
                continue
            if other.task == scratch.task and _setting(other) == _setting(scratch):
                gain = _gain(other, scratch)
                found += [gain] if gain else []
    return found


def table(gains: Sequence[Gain]) -> Table:
    """Returns a row for each gain, in percent."""
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
    """Returns the numbers of a gain."""
    labels = {"pretrained": gain.pretrained.label, "scratch": gain.scratch.label}
    return gain._asdict() | labels | {"difference": gain.difference}


def _gain(pretrained: Group, scratch: Group) -> Gain | None:
    ours, theirs = ({run.seed: run for run in group.runs} for group in (pretrained, scratch))
    seeds = tuple(sorted(set(ours) & set(theirs)))
    answers = [
        [found for seed in seeds if (found := _correct(runs[seed])) is not None]
        for runs in (ours, theirs)
    ]
    if not seeds or any(len(own) < len(seeds) for own in answers):
        return None
    names = answers[0][0].keys()
    if any(own.keys() != names for runs in answers for own in runs):
        runs = ", ".join(run.name for run in (*pretrained.runs, *scratch.runs))
        raise ValueError(f"{runs} answered other examples; compare runs on the same data.")
    one, other = (
        np.mean([[own[name] for name in names] for own in runs], axis=0) for runs in answers
    )
    differences = one - other
    error = math.nan
    if len(differences) > 1:
        error = float(differences.std(ddof=1) / math.sqrt(len(differences)))
    accuracies = (float(one.mean()), float(other.mean()))
    return Gain(pretrained.task, pretrained, scratch, seeds, len(differences), accuracies, error)


def _correct(run: Run) -> Mapping[str, np.bool] | None:
    """Returns which examples a run got right, on a test set with labels if any; None without predictions."""
    task = TASKS[run.task]
    split = "test" if "test" in run.scores else "valid"
    file = Path(run.folder, "predictions", file_name(task, split))
    if task.is_regression or not file.is_file():
        return None
    kept = read_predictions(task, file)
    if kept.labels is None:
        return None
    right: npt.NDArray[np.bool] = kept.predictions == kept.labels
    return dict(zip(kept.ids.tolist(), right, strict=True))


def _from_scratch(group: Group) -> bool:
    return bool(group.runs[0].result.get("from_scratch"))


def _setting(group: Group) -> dict[str, str]:
    setting = group.runs[0].setting
    return {key: value for key, value in setting.items() if key not in START}
