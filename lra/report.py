"""Turns runs into a table and a picture: `python -m lra.report runs/listops-seed0 --out results/listops`.

Finished runs give their test accuracy with its binomial error; unfinished ones their curve so far.
"""

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.data import describe

# What a model scores that has learnt nothing, or only which operator stands first.
# Source: a predictor that knows just that much, on 5,000 trees of the official distribution.
BASELINES = {
    "listops": {"constant answer": 0.176, "first operator alone": 0.359},
    "text": {"constant answer": 0.5},
    "retrieval": {"constant answer": 0.5},
    "image": {"constant answer": 0.1},
    **{f"pathfinder{side}": {"constant answer": 0.5} for side in (32, 64, 128, 256)},
}


@dataclasses.dataclass(frozen=True)
class Run:
    """A run's folder, read. `result` is None until it has finished."""

    name: str
    config: dict[str, Any]
    metrics: list[dict[str, float]]
    result: dict[str, Any] | None

    @property
    def task(self) -> str:
        """The task's name."""
        return str(self.config["data"]["task"])

    @property
    def label(self) -> str:
        """What sets it apart: attention, landmarks, seed."""
        attention, seed = self.config["attention"], self.config["train"]["seed"]
        landmarks = f"-{attention['num_landmarks']}" if "num_landmarks" in attention else ""
        return f"{attention['name']}{landmarks}, seed {seed}"

    def curve(self, metric: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric."""
        points = [(int(line["step"]), line[metric]) for line in self.metrics if metric in line]
        return [step for step, _ in points], [value for _, value in points]


def read_run(folder: Path) -> Run:
    """Reads a run's folder.

    Raises:
      FileNotFoundError: It holds no run.
    """
    if not (folder / "config.json").is_file() or not (folder / "metrics.jsonl").is_file():
        raise FileNotFoundError(
            f"{folder} holds no run: config.json and metrics.jsonl are needed; pass --workdir's folder."
        )
    result = folder / "result.json"
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return Run(
        name=folder.resolve().name,
        config=json.loads((folder / "config.json").read_text(encoding="utf-8")),
        metrics=[json.loads(line) for line in lines],
        result=json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None,
    )


def binomial_error(accuracy: float, examples: int) -> float:
    """The standard error of an accuracy that was counted on `examples` independent examples."""
    return math.sqrt(accuracy * (1 - accuracy) / examples)


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The mean, and the half width of its Student t interval; NaN with fewer than two values."""
    from scipy import stats  # comes with jax

    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def sentence(result: Mapping[str, Any]) -> str:
    """One result, for people."""
    error = binomial_error(result["test_accuracy"], result["test_examples"])
    return (
        f"{result['task']} with {result['attention']} attention: test accuracy"
        f" {100 * result['test_accuracy']:.2f} ± {100 * error:.2f} % on {result['test_examples']:,}"
        f" examples; validation {100 * result['valid_accuracy']:.2f} % at its best step,"
        f" {result['best_step']:,}."
    )


def sentence_over_seeds(results: Sequence[Mapping[str, Any]]) -> str:
    """Several seeds of one config, for people."""
    accuracies = [100 * result["test_accuracy"] for result in results]
    mean, half_width = t_interval(accuracies)
    return (
        f"{results[0]['task']} with {results[0]['attention']} attention, {len(results)} seeds: test"
        f" accuracy {mean:.2f} %, standard deviation {statistics.stdev(accuracies):.2f}, 95 %"
        f" t-interval ± {half_width:.2f} ({', '.join(f'{value:.2f}' for value in accuracies)})."
    )


def markdown(runs: Sequence[Run]) -> str:
    """A table of the runs, one line each."""
    rows = [
        "| task | attention | test accuracy, % | validation, % | best step | steps | s a step | device |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        result = run.result
        if result is None:
            last = run.metrics[-1]["step"] if run.metrics else 0
            rows.append(f"| {run.task} | {run.label} | not finished | | | {last:,} | | |")
            continue
        error = binomial_error(result["test_accuracy"], result["test_examples"])
        partial = ", partial" if result["partial"] else ""
        speed = result["step_seconds"]
        rows.append(
            f"| {run.task}{partial} | {run.label}"
            f" | {100 * result['test_accuracy']:.2f} ± {100 * error:.2f}"
            f" | {100 * result['valid_accuracy']:.2f} | {result['best_step']:,}"
            f" | {_steps(result)} | {f'{speed:.3g}' if speed else ''}"
            f" | {result['device']['count']} × {result['device']['kind']} |"
        )
    return "\n".join(rows) + "\n"


def _steps(result: Mapping[str, Any]) -> str:
    """The steps of a run, beside those of the whole budget where they were fewer."""
    steps, budget = result["total_steps"], describe(result["task"]).total_steps
    return f"{steps:,} of {budget:,}" if steps < budget else f"{steps:,}"


def plot_curves(runs: Sequence[Run], path: Path) -> None:
    """Draws loss and accuracy against steps, training thin and validation thick, as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (losses, accuracies) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for number, run in enumerate(runs):
        color = f"C{number}"
        for axes, metric, scale in ((losses, "loss", 1), (accuracies, "accuracy", 100)):
            for split, style in (
                ("train", {"linewidth": 0.8, "alpha": 0.6}),
                ("valid", {"linewidth": 2, "marker": "o", "markersize": 3, "label": run.label}),
            ):
                steps, values = run.curve(f"{split}/{metric}")
                axes.plot(steps, [scale * value for value in values], color=color, **style)
    for number, (name, level) in enumerate(BASELINES.get(runs[0].task, {}).items()):
        dashes = ("--", ":")[number % 2]
        accuracies.axhline(100 * level, color="grey", linewidth=1, linestyle=dashes, label=name)
    losses.set(xlabel="step", ylabel="cross-entropy, nats", title=f"{runs[0].task}: loss")
    accuracies.set(xlabel="step", ylabel="accuracy, %", title="accuracy (thick: validation)")
    accuracies.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.md` and `<out>.png`; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lra.report", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs of one task")
    parser.add_argument("--out", type=Path, required=True, help="where to write, without an ending")
    given = parser.parse_args(arguments)
    try:
        runs = [read_run(folder) for folder in given.runs]
    except (OSError, ValueError) as error:
        print(f"lra.report: {error}", file=sys.stderr)
        return 2
    tasks = {run.task for run in runs}
    if len(tasks) > 1:
        print(
            f"lra.report: runs of one task make a report; these are of {', '.join(sorted(tasks))}.",
            file=sys.stderr,
        )
        return 2
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".md").write_text(markdown(runs), encoding="utf-8")
    plot_curves(runs, given.out.with_suffix(".png"))
    print(markdown(runs), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
