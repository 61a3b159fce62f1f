"""Breaks the accuracy on ListOps down by root operator, depth, first and last argument, and length.

    python -m lra.figures.listops runs/listops-seed0 --out results/figures/listops

<out>-parts.png   accuracy on the groups of the test set, compared with the most frequent answer of each group
<out>-parts.json  all numbers, with the run, the data and the environment

The panel "first and last argument" groups trees by the kinds of these two arguments of the root, digit or
list. Such digits can be read near the ends of the sequence. Lengths outside of the training set are new
trees; those longer than the training set need a model that supports any length: without learned positions
and not Linformer.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from cli.commands import number, run_to_end
from dataprep import parallel
from lra.data import listops
from lra.data.listops import OPERATORS, VOCAB
from lra.data.task import Padding, Sequences, Split
from lra.figures.trained_run import Trained, new_parser, open_run
from lra.predict import logits
from nystromformer_jax.support.durable import write_json
from reporting.plotting import COLORS, GREY, WIDTH, new_figure
from reporting.statistics import binomial_error
from reporting.writer import staged

NAMES = {VOCAB[operator]: operator[1:] for operator in OPERATORS}
BATCH_SIZE = 16
MULTIPLE = 256  # trees that are longer than those in training are padded to a multiple
TRAINED = {"listops": 2000, "listops-short": 500}  # all trees of a task are shorter
OTHERS = {  # lengths of new trees, both exclusive
    "listops": ((100, 500), (2000, 3000)),
    "listops-short": ((500, 2000), (2000, 3000)),
}


class Shape(NamedTuple):
    """Properties of a tree that do not depend on its values."""

    operator: str  # of the root, such as "MAX"
    depth: int  # number of levels of lists
    ends: str  # kinds of the first and the last argument of the root, such as "digit, list"


def shape_of(tokens: Sequence[int]) -> Shape:
    """Returns the shape of a tree, given as tokens that begin with an operator."""
    level = depth = 0
    arguments = []  # kinds of the root's arguments
    for token in tokens:
        if token == VOCAB["]"]:
            level -= 1
            continue
        is_list = token in NAMES
        if level == 1:
            arguments.append("list" if is_list else "digit")
        level += is_list
        depth = max(depth, level)
    return Shape(NAMES[tokens[0]], depth, f"{arguments[0]}, {arguments[-1]}")


def predict(trained: Trained, split: Split) -> npt.NDArray[np.int64]:
    """Returns the predicted class of each example of a split, [N]."""
    padding = functools.partial(_padding, trained)
    found = logits(trained.run.model, trained.params, split, padding, BATCH_SIZE)
    return found.argmax(axis=-1)


def _padding(trained: Trained, longest: int) -> Padding:
    """Returns the padding of a batch: as in training, except for trees that are longer than its trees."""
    padding = trained.run.data.padding
    if longest > padding.max_len and longest > TRAINED[trained.task.name]:
        return Padding(longest, -(-longest // MULTIPLE) * MULTIPLE)
    return padding.for_longest(longest)


def measure(trained: Trained, new_trees: int) -> dict[str, Any]:
    """Returns all numbers; `new_trees` is the number of new trees per range of lengths.

    Raises:
      ValueError: The run has another task.
    """
    if not trained.task.name.startswith("listops"):
        raise ValueError(
            f"{trained.name} is a run of {trained.task.name}: pass the folder of a ListOps run."
        )
    test = trained.task.splits["test"]
    shapes = pd.DataFrame([shape_of(test[index][0].tolist()) for index in range(len(test))])
    predicted = predict(trained, test)
    bins = test.lengths // 500 * 500
    parts = {
        "operator of the root": _by(shapes["operator"], test, predicted),
        "depth": _by(shapes["depth"], test, predicted),
        "first and last argument": _by(shapes["ends"], test, predicted),
        "tokens": _by(bins, test, predicted, lambda start: f"{start:,} to {start + 499:,}"),
        "tokens, new trees": [
            row
            for shortest, longest in OTHERS[trained.task.name]
            if supports(trained, longest)
            for row in _new_trees(trained, new_trees, shortest, longest)
        ],
    }
    return {**trained.origin, "parts": parts}


def supports(trained: Trained, longest: int) -> bool:
    """Returns True if the model supports trees of fewer than `longest` tokens."""
    fixed = trained.run.model.config.positions == "learned" or trained.run.attention == "linformer"
    return not fixed or longest <= trained.run.data.max_len


def _new_trees(trained: Trained, count: int, shortest: int, longest: int) -> list[dict[str, Any]]:
    """Returns the row of `count` new trees with more than `shortest` and fewer than `longest` tokens."""
    trees = listops.generate(
        count,
        seed=trained.run.data.seed,
        min_length=shortest,
        max_length=longest,
        num_processes=parallel.num_processes(0),
    )
    tokens, labels = zip(*trees, strict=True)
    split = Split(Sequences.from_bytes(tokens), np.array(labels, np.int32))
    name = f"{shortest + 1:,} to {longest - 1:,}"
    return _by([name] * count, split, predict(trained, split))


def _by(
    groups: npt.ArrayLike,
    split: Split,
    predicted: npt.NDArray[np.int64],
    name: Callable[[Any], str] = str,
) -> list[dict[str, Any]]:
    """Returns a row per group: examples, accuracy, standard error, share of the most frequent answer."""
    examples = pd.DataFrame({"label": split.labels, "correct": predicted == split.labels})
    return [
        {
            "group": name(group),
            "examples": len(own),
            "accuracy": float(own["correct"].mean()),
            "standard_error": binomial_error(float(own["correct"].mean()), len(own)),
            "most_frequent": float(own["label"].value_counts().max() / len(own)),
        }
        for group, own in examples.groupby(np.asarray(groups))
    ]


def draw(numbers: dict[str, Any], path: Path) -> None:
    """Draws a panel for each way to group the examples."""
    parts = {name: rows for name, rows in numbers["parts"].items() if rows}
    heights = [len(rows) + 1 for rows in parts.values()]
    figure = new_figure(WIDTH, 0.3 * sum(heights) + 1)
    panels = figure.subplots(len(parts), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for panel, (name, rows) in zip(panels, parts.items(), strict=True):
        places = np.arange(len(rows))
        accuracies = [100 * row["accuracy"] for row in rows]
        errors = [100 * row["standard_error"] for row in rows]
        panel.barh(places, accuracies, xerr=errors, color=COLORS[4], ecolor=GREY)
        frequent = [100 * row["most_frequent"] for row in rows]
        panel.plot(frequent, places, "|", color=COLORS[1], markersize=13, markeredgewidth=2.5)
        names = [f"{row['group']} ({row['examples']:,})" for row in rows]
        panel.set_yticks(places, names)
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.set_title(name, fontsize=10, loc="left")
        panel.grid(axis="x", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
        for row, place in zip(rows, places, strict=True):
            end = max(100 * (row["accuracy"] + row["standard_error"]), 100 * row["most_frequent"])
            panel.text(end + 1.5, place, f"{100 * row['accuracy']:.1f}", va="center", fontsize=9)
    panels[-1].set_xlabel("test accuracy, %; bar: model, mark: most frequent answer of the group")
    figure.suptitle(
        f"{numbers['task']}, {numbers['attention']}, step {numbers['checkpoint']['step']:,}"
        " (number of examples), with binomial standard errors",
        fontsize=11,
    )
    figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes a figure and a JSON file and returns the exit code."""
    parser = new_parser("lra.figures.listops", __doc__)
    parser.add_argument(
        "--new_trees", type=number(int, 1), default=500, help="new trees per range of lengths"
    )
    given = parser.parse_args(arguments)

    def report() -> None:
        trained = open_run(given.run, data_dir=given.data_dir)
        numbers = measure(trained, given.new_trees)
        out = given.out or Path("results/figures", trained.name)
        with staged(out) as path:
            draw(numbers, path.with_name(f"{out.name}-parts.png"))
            write_json(path.with_name(f"{out.name}-parts.json"), numbers)
        print(f"Written: {out}-parts.json, {out}-parts.png.")

    return run_to_end("lra.figures.listops", report)


if __name__ == "__main__":
    sys.exit(main())
