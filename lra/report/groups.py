"""Groups of runs that differ only in the seed, and comparisons between groups."""

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lra.data import check_task, describe
from lra.report.published import TITLES, baselines_of
from nystromformer_jax.support.plugins import is_plugin
from reporting.records import recipe_words
from reporting.runs import STATES, read_runs, unique_labels
from reporting.statistics import Summary, binomial_error, holm, paired_p, summarize

MAX_ALL_PAIRS = 5  # if there are more groups, all are compared with one reference group
# Two groups are compared if they agree in these keys of their settings.
BUDGET = (
    "train.total_steps",
    "train.batch_size",
    "data.examples",
    "eval.max_examples",
    "data.sha256",
)
# Columns that only finished runs have.
MEASURED = ("test_accuracy", "test_examples", "valid_accuracy", "peak_bytes", "parameters")
COMPARISON = ("task", "first", "second", "seeds", "difference", "half_width", "binomial_error", "p")


def read(folders: Iterable[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Returns one run of the benchmark per setting and seed, and a sentence for each run that was left out.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
      ValueError: A file of a run is invalid.
    """
    needed = "run of the benchmark: config.json and metrics.jsonl are needed"
    runs, left_out = read_runs(folders, ["lra"], needed)
    for run in runs.itertuples():
        try:
            check_task(run.task)
        except ValueError as error:
            raise ValueError(f"{run.folder / 'config.json'}: {error}") from None
    return runs.assign(budget_steps=list(map(_budget_steps, runs.to_dict("records")))), left_out


def group(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per task and setting, sorted by task, then the most complete first.

    Columns: task, recipe, label (as recorded), name (unique in the task), attention, setting, state, members
    (rows of the scored runs or, if there are none, of all), seeds, runs and diverged (numbers of runs),
    accuracies (test, % by seed), and over the scored runs n, mean, deviation, half_width, binomial_error;
    valid, valid_deviation (of the members); done_steps, budget_steps; step_seconds, step_low, step_high
    (median, least and largest over seeds), examples_per_second; peak_bytes, parameters, device.

    Scored are the complete runs or, if there are none, the partial runs. More seeds do not lower the
    binomial error, because they share a test set. Of labeled tokens it counts sequences, whose answers are
    not independent.
    """
    runs = runs.assign(**{key: math.nan for key in MEASURED if key not in runs})
    groups = pd.DataFrame([_row(own) for _, own in runs.groupby(["task", "setting"], sort=False)])
    complete = groups["state"] == "complete"
    keys = zip(
        groups["task"].map(task_rank),
        groups["state"].map(STATES.index),
        -groups["n"],
        -complete.groupby([groups["recipe"], groups["label"]]).transform("sum"),
        groups["recipe"],
        groups["attention"] == "none",
        groups["label"],
        strict=True,
    )
    groups = groups.assign(order=list(keys)).sort_values("order", ignore_index=True)
    words = groups["recipe"].map(recipe_words)
    names = groups["label"] + words.where(words == "", ", " + words)
    return groups.drop(columns="order").assign(name=unique_labels(groups.assign(label=names)))


def task_rank(task: str) -> tuple[int, str]:
    """Returns a sort key of tasks: tasks of the benchmark in the order of `TITLES`, then others by name."""
    return (list(TITLES).index(task) if task in TITLES else len(TITLES), task)


def trivial_of(runs: pd.DataFrame, task: str) -> dict[str, float]:
    """Returns the accuracies of trivial predictors of a task in percent, from its runs if they have them."""
    own = runs[runs["task"] == task]
    found: dict[str, float] = {}
    for baselines in own[own["data_sha256"] == own["data_sha256"].iloc[0]]["baselines"]:
        found = {**baselines, **found}
    return {name: 100 * value for name, value in (found or baselines_of(task)).items()}


def compare(groups: pd.DataFrame) -> pd.DataFrame:
    """Compares groups of the same task and budget, with p-values corrected over all comparisons.

    Columns: task, first, second (names of groups), seeds (common to both), difference (test accuracy of the
    first minus that of the second, in points), half_width (of the paired 95 % t interval, for three or more
    common seeds), binomial_error (without two common seeds), p (of the paired t-test), p_holm.
    """
    rows = []
    scored = groups[groups["n"] > 0]
    budgets = [
        (row.state, *(dict(row.setting).get(key) for key in BUDGET)) for row in scored.itertuples()
    ]
    for _, own in scored.assign(budget=budgets).groupby(["task", "budget"], sort=False):
        peers = own.to_dict("records")
        pairs = list(itertools.combinations(peers, 2))
        if len(peers) > MAX_ALL_PAIRS:
            tasks = groups.groupby(["recipe", "label"])["task"].nunique()
            reference = max(
                peers, key=lambda x: (tasks[x["recipe"], x["label"]], -x["label"].count("="))
            )
            pairs = [(other, reference) for other in peers if other is not reference]
        rows += [_difference(*pair) for pair in pairs]
    found = pd.DataFrame(rows, columns=COMPARISON)
    return found.assign(p_holm=holm(found["p"].tolist()))


def mean_over(cells: Collection[Mapping[str, Any]]) -> Summary:
    """Returns the mean over groups of several tasks, with a spread if all have the same seeds."""
    seeds = {tuple(cell["accuracies"]) for cell in cells}
    if len(seeds) == 1:
        return summarize(
            [statistics.fmean(cell["accuracies"][s] for cell in cells) for s in seeds.pop()]
        )
    mean = statistics.fmean(cell["mean"] for cell in cells)
    return Summary(min(cell["n"] for cell in cells), mean, math.nan, math.nan)


def differ_only_in_attention(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Returns True if the settings of two groups are equal except for the attention."""
    first, second = (
        {item for item in group["setting"] if not item[0].startswith("attention.")}
        for group in (one, other)
    )
    return first == second


def _budget_steps(run: Mapping[str, Any]) -> int:
    """Returns the number of steps of a complete run."""
    steps = run.get("config.train.budget_steps")  # older runs do not have the key
    if not steps or math.isnan(steps):
        plugin = is_plugin(run["task"])
        steps = run["config.train.total_steps"] if plugin else describe(run["task"]).total_steps
    return int(steps)


def _row(own: pd.DataFrame) -> dict[str, Any]:
    own = own.sort_values("seed")
    first = own.sort_values("command", kind="stable").iloc[-1]  # an older run has no record
    state = min(own["state"], key=STATES.index)
    finished = own[own["state"].isin(["complete", "partial"])]
    scored = finished[finished["state"] == state]
    shown = scored if len(scored) else own
    accuracies = dict(zip(scored["seed"], 100 * scored["test_accuracy"], strict=True))
    summary = summarize(list(accuracies.values()))
    valid = summarize(list(100 * shown["valid_accuracy"].dropna()))
    times = finished["step_seconds"]
    return {
        **{key: first[key] for key in ("task", "recipe", "label", "attention", "setting")},
        "state": state,
        "members": shown.to_dict("records"),
        "seeds": list(shown["seed"]),
        "runs": len(own),
        "diverged": int((own["state"] == "diverged").sum()),
        "accuracies": accuracies,
        **summary._asdict(),
        "binomial_error": 100 * binomial_error(summary.mean / 100, scored["test_examples"].min()),
        "valid": valid.mean,
        "valid_deviation": valid.deviation,
        "done_steps": own["done_steps"].max(),
        "budget_steps": first["budget_steps"],
        "step_seconds": times.median(),
        "step_low": times.min(),
        "step_high": times.max(),
        "examples_per_second": first.get("config.train.batch_size", math.nan) / times.median(),
        "peak_bytes": finished["peak_bytes"].max(),
        "parameters": finished["parameters"].max(),
        "device": ", ".join(sorted(set(filter(None, own["device"])))),
    }


def _difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of `compare`, which lacks the values that are unknown."""
    one, other = first["accuracies"], second["accuracies"]
    seeds = sorted(one.keys() & other.keys())
    names = {"task": first["task"], "first": first["name"], "second": second["name"]}
    if len(seeds) < 2:  # the common seed alone, because a mean over more seeds has another spread
        means = [x[seeds[0]] if seeds else statistics.fmean(x.values()) for x in (one, other)]
        error = math.hypot(first["binomial_error"], second["binomial_error"])
        return {
            **names,
            "seeds": seeds,
            "difference": means[0] - means[1],
            "binomial_error": error,
        }
    pairs = [one[seed] for seed in seeds], [other[seed] for seed in seeds]
    difference = summarize([a - b for a, b in zip(*pairs, strict=True)])
    return {
        **names,
        "seeds": seeds,
        "difference": difference.mean,
        "half_width": difference.half_width,
        "p": paired_p(*pairs),
    }
