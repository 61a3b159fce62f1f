"""Tables of the report on language models."""

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from language.finetune.glue_tasks import TASKS
from language.report.published import COLUMNS, PAPER_COLUMNS, SOURCE, TABLE_2
from nystromformer_jax.support.spelling import nearest
from reporting.runs import display, read_runs, unique_labels
from reporting.statistics import Summary, binomial_error, format_spread, summarize
from reporting.tables import (
    NOTHING,
    comparison,
    format_3sf,
    format_difference,
    format_known,
    in_sections,
)

TITLES = {
    "mlm_accuracy": "MLM accuracy, %",
    "order_accuracy": "sentence-order accuracy, %",
    "mlm_loss": "MLM loss, nats per token",
    "perplexity": "perplexity",
}
PRETRAINING_METRICS = ("mlm_accuracy", "order_accuracy", "mlm_loss", "perplexity")
# Metrics that every pretraining has; objective.order_weight=0 gives no order_accuracy.
REQUIRED = ("mlm_accuracy", "mlm_loss")
NOT_RUN = "not run"
# Keys of a setting that may differ between a pretrained model and the same model from scratch.
START = {"init.from_scratch", "init.init_sha256"}


def read(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Returns one finished run per setting and seed, and a sentence for each run that was left out.

    The runs are of pretraining, or of fine-tuning on GLUE or IMDb.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run, or none is finished.
      ValueError: A file of a run is invalid.
    """
    needed = (
        "finished run of pretraining, or of fine-tuning on GLUE or IMDb: its result.json is needed"
    )
    runs, left_out = read_runs(folders, ["glue", "pretrain"], needed)
    is_finished = runs["state"].isin(["complete", "partial"])
    for run in runs[~is_finished].to_dict("records"):
        step = f"{run['done_steps']:,}"
        words = f"diverged at step {step}" if run["state"] == "diverged" else "is not finished"
        left_out.append(f"{display(run['folder'])} is left out: it {words}.")
    runs = runs[is_finished]
    if runs.empty:
        raise FileNotFoundError(f"No {needed}. {' '.join(left_out)}")
    for run in runs.to_dict("records"):
        if run["kind"] == "glue" and run["task"] not in TASKS:
            raise ValueError(f"{run['folder']}: the task is unknown{nearest(run['task'], TASKS)}")
        for metric in metrics_of(run["task"]) if run["task"] else REQUIRED:
            if math.isnan(run.get(f"valid.{metric}", math.nan)):
                raise ValueError(f"{run['folder'] / 'result.json'}: valid.{metric} is missing.")
    return runs, left_out


def group(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per task and setting: task, model, name (unique in the task), runs, is_partial, setting.

    `task` is empty for pretraining; `runs` are the rows of the runs, sorted by seed. `model` is the label up
    to the first change, and "from scratch" if it begins without the weights of its checkpoint.
    """
    rows = []
    for _, own in runs.groupby(["kind", "task", "setting"], sort=False):
        found = own.sort_values("seed").to_dict("records")
        first = found[0]
        scratch = " from scratch" if first.get("from_scratch") is True else ""
        rows.append(
            {
                **{key: first[key] for key in ("task", "kind", "recipe", "label", "setting")},
                "model": first["label"].partition(", ")[0] + scratch,
                "runs": found,
                "is_partial": any(run["state"] == "partial" for run in found),
            }
        )
    order = {task: place for place, task in enumerate(TASKS)}
    rows.sort(key=lambda row: (order.get(row["task"], -1), row["is_partial"], row["label"]))
    groups = pd.DataFrame(rows)
    return groups.assign(name=unique_labels(groups))


def metrics_of(task: str) -> Sequence[str]:
    """Returns the metrics of a task, or of pretraining if the task is empty."""
    return TASKS[task].metrics if task else PRETRAINING_METRICS


def table_2(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns Table 2 of the paper: one row per model of these runs, and the published rows.

    It has the columns that these runs have. Of several settings, the best on validation is shown. A cell
    has partial runs only if none is complete, those of the most steps, and no runs that were validated on
    training examples.
    """
    is_shown = [
        bool(task) and not dict(setting).get("data.valid_share")
        for task, setting in zip(groups["task"], groups["setting"], strict=True)
    ]
    rows = [
        {"model": model, **{title: _best_cell(own, *column) for title, column in COLUMNS.items()}}
        for model, own in groups[is_shown].groupby("model", sort=False)
    ]
    rows.sort(key=lambda row: list(row.values()).count(NOT_RUN))
    rows = [row for row in rows if set(row.values()) - {row["model"], NOT_RUN}]
    paper = [
        {"model": model, **dict(zip(PAPER_COLUMNS, map("{:.1f}".format, values), strict=True))}
        for model, values in TABLE_2.items()
    ]
    return comparison("model", {"This code": rows}, {SOURCE: paper}, tuple(COLUMNS), [NOT_RUN])


def gains_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns what pretraining adds: pairs of settings that differ only in it, on the same examples.

    Accuracies are means over the seeds of both; the error is the standard error of the paired difference
    over examples.

    Raises:
      ValueError: Predictions are invalid or belong to different examples.
    """
    tuned = groups[groups["task"] != ""].to_dict("records")
    scratch = [one for one in tuned if one["model"].endswith(" from scratch")]
    rows = [
        row
        for one, other in itertools.product(tuned, scratch)
        if one not in scratch
        and (one["task"], _beyond_start(one)) == (other["task"], _beyond_start(other))
        and (row := _gain(one, other))
    ]
    return pd.DataFrame(rows)


def pretraining_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with one row per pretrained model, and the context-free baselines."""
    rows = []
    for own in groups.to_dict("records"):
        run = own["runs"][0]
        millions = run.get("parameters", math.nan) / 1e6
        over_seeds = {}
        for name in PRETRAINING_METRICS:
            summary = _summary(own, "valid", name)
            known = [x for x in (summary.mean, summary.deviation) if not math.isnan(x)]
            over_seeds[TITLES[name]] = " ± ".join(_plain(x, name) for x in known) or NOTHING
        rows.append(
            {
                "model": own["name"] + (", partial" if own["is_partial"] else ""),
                "seeds": ", ".join(str(one["seed"]) for one in own["runs"]),
                **over_seeds,
                "parameters, M": format_known(millions, "{:,.1f}"),
                "steps": _steps(own),
                "held-out pairs": format_known(run.get("valid_examples"), "{:,.0f}"),
            }
        )
    baseline = baselines(groups)
    trivial = {
        "model": "most frequent token and constant order (accuracies), unigram frequencies (loss)",
        **{
            TITLES[name]: _plain(baseline[name], name)
            for name in PRETRAINING_METRICS
            if name in baseline
        },
    }
    return in_sections({"": rows, "Without context": [trivial] if baseline else []})


def baselines(groups: pd.DataFrame) -> Mapping[str, float]:
    """Returns the metrics of context-free baselines, if all runs with baselines agree."""
    known = [run["baselines"] for own in groups["runs"] for run in own if run["baselines"]]
    return known[0] if known and all(one == known[0] for one in known) else {}


def _summary(group: Mapping[str, Any], split: str, metric: str) -> Summary:
    """Returns statistics of a metric over seeds; NaN if a run lacks it."""
    return summarize([run.get(f"{split}.{metric}", math.nan) for run in group["runs"]])


def _steps(group: Mapping[str, Any]) -> str:
    """Returns the steps over seeds: the number of all runs, or mean and deviation."""
    steps = [run["done_steps"] for run in group["runs"]]
    summary = summarize(steps)
    spread = f" ± {summary.deviation:,.0f}" if len(set(steps)) > 1 else ""
    return f"{summary.mean:,.0f}{spread}"


def _num_steps(group: Mapping[str, Any]) -> int:
    return max(run["done_steps"] for run in group["runs"])


def _best_cell(groups: pd.DataFrame, task: str, split: str, metric: str) -> str:
    """Returns a cell of Table 2: mean and deviation over seeds; for one seed, the error over examples."""
    own = groups[groups["task"] == task].to_dict("records")
    if not own:
        return NOT_RUN
    if complete := [one for one in own if not one["is_partial"]]:
        own = complete
    else:
        most = max(_num_steps(one) for one in own)
        own = [one for one in own if _num_steps(one) == most]
    best = max(own, key=lambda one: _summary(one, "valid", TASKS[task].select_by).mean)
    cell = _summary(best, split, metric)
    if math.isnan(cell.mean):
        return NOT_RUN
    words = f"{format_spread(100 * cell.mean, 100 * cell.deviation)} (n = {cell.n})"
    if cell.n == 1:
        error = _error(best["runs"][0], split, metric)
        words = f"{100 * cell.mean:.2f}"
        words += "" if math.isnan(error) else f" (s.e. {100 * error:.2f})"
    words += f", best of {len(own)}" if len(own) > 1 else ""
    return f"{words}, partial" if best["is_partial"] else words


def _gain(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns the row of a gain over the common seeds; None without them or without predictions."""
    ours, theirs = ({run["seed"]: run for run in own["runs"]} for own in (one, other))
    seeds = sorted(ours.keys() & theirs.keys())
    answers = [_correct(runs[seed]) for runs in (ours, theirs) for seed in seeds]
    if not answers or any(own.empty for own in answers):
        return None
    correct = pd.concat(answers, axis=1)  # aligned by example
    if correct.isna().any(axis=None):
        runs = ", ".join(run["name"] for run in (*one["runs"], *other["runs"]))
        raise ValueError(f"{runs} predicted different examples; compare runs on the same data.")
    pretrained = correct.iloc[:, : len(seeds)].mean(axis=1)
    scratch = correct.iloc[:, len(seeds) :].mean(axis=1)
    difference = pretrained - scratch
    return {
        "task": TASKS[one["task"]].title,
        "model": one["model"],
        "seeds": ", ".join(map(str, seeds)),
        "examples": f"{len(difference):,}",
        "from scratch, %": f"{100 * scratch.mean():.2f}",
        "pretrained, %": f"{100 * pretrained.mean():.2f}",
        "difference ± s.e.": f"{format_difference(100 * difference.mean())}"
        f" ± {100 * difference.sem():.2f}",
    }


def _correct(run: Mapping[str, Any]) -> pd.Series:
    """Returns 1.0 or 0.0 by example id, on the test set if it was scored, else on the validation set.

    The result is empty for regression, and without a file of labeled predictions.
    """
    task = TASKS[run["task"]]
    split = "test" if not math.isnan(run.get("test.accuracy", math.nan)) else "valid"
    file = Path(run["folder"], "predictions", task.file_name(split))
    if task.is_regression or not file.is_file():
        return pd.Series(dtype=float)
    options = {"sep": "\t", "dtype": str, "keep_default_na": False, "quoting": csv.QUOTE_NONE}
    try:
        found = pd.read_csv(file, index_col="index", **options)
        if "label" not in found:
            return pd.Series(dtype=float)
        return (found["prediction"] == found["label"]).astype(float)
    except (ValueError, KeyError) as error:
        raise ValueError(f"{file} is not a file of predictions ({error}).") from None


def _beyond_start(group: Mapping[str, Any]) -> set[Any]:
    return {item for item in group["setting"] if item[0] not in START}


def _error(run: Mapping[str, Any], split: str, metric: str) -> float:
    """Returns the standard error of a metric over examples; NaN if unknown."""
    known = float(run.get(f"{split}_standard_error.{metric}", math.nan))
    examples = run.get(f"{split}_examples", 0)
    if math.isnan(known) and metric == "accuracy" and examples > 0:
        return binomial_error(run[f"{split}.{metric}"], examples)
    return known


def _plain(value: float, metric: str) -> str:
    if metric == "perplexity":
        return format_3sf(value)
    return f"{value:.3f}" if metric == "mlm_loss" else f"{100 * value:.2f}"
