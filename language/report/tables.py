"""Tables of the report on language models."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from language.glue.tasks import TASKS
from language.report.published import COLUMNS, SOURCE, TABLE_2, Column
from language.tasks.sequences import read_predictions
from nystromformer_jax.support.spelling import nearest
from reporting.runs import one_per_seed, over_seeds, read_runs, unique_labels
from reporting.statistics import binomial_error, format_spread
from reporting.tables import NOTHING, format_3sf, format_difference, in_sections

TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mlm_accuracy": "MLM accuracy, %",
    "order_accuracy": "sentence-order accuracy, %",
    "mlm_loss": "MLM loss, nats per token",
    "perplexity": "perplexity",
}
SPLIT_TITLES = {"valid": "", "valid_mismatched": "mismatched ", "test": "test "}
PRETRAINING_METRICS = ("mlm_accuracy", "order_accuracy", "mlm_loss", "perplexity")
# Keys of a setting that may differ between a pretrained model and the same model from scratch.
START = {"init.from_scratch", "init.init_sha256"}


def read(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Returns one finished run per setting and seed, and a sentence for each run that was left out.

    The runs are of pretraining, or of fine-tuning on GLUE or IMDb.

    Raises:
      FileNotFoundError: A folder does not exist or contains no run.
      ValueError: A file of a run is invalid.
    """
    needed = (
        "finished run of pretraining, or of fine-tuning on GLUE or IMDb: its result.json is needed"
    )
    found = read_runs(folders, ["glue", "pretrain"], needed)
    for run in found.to_dict("records"):
        if run["kind"] == "glue" and run["task"] not in TASKS:
            raise ValueError(f"{run['folder']}: the task is unknown{nearest(run['task'], TASKS)}")
        for metric in metrics_of(run["task"]):
            if math.isnan(run.get(f"valid.{metric}", math.nan)):
                raise ValueError(f"{run['folder'] / 'result.json'}: valid.{metric} is missing.")
    return one_per_seed(found)


def group(runs: pd.DataFrame) -> pd.DataFrame:
    """Returns a row per task and setting: task, model, name (unique in the task), runs, is_partial, setting.

    `task` is empty for pretraining; `runs` are the rows of the runs, sorted by seed. `model` is the label up
    to the first change, and "from scratch" if it begins without the weights of its checkpoint.
    """
    rows = []
    for _, own in runs.groupby(["kind", "task", "setting"], sort=False):
        found = own.sort_values("seed").to_dict("records")
        first, model = found[0], found[0]["label"].partition(", ")[0]
        scratch = first.get("from_scratch") is True
        rows.append(
            {
                **{key: first[key] for key in ("task", "kind", "recipe", "label", "setting")},
                "model": f"{model} from scratch" if scratch else model,
                "runs": found,
                "is_partial": any(run["state"] == "partial" for run in found),
            }
        )
    groups = pd.DataFrame(rows)
    order = {task: place for place, task in enumerate(TASKS)}
    keys = [(order.get(row.task, -1), row.is_partial, row.label) for row in groups.itertuples()]
    groups = groups.assign(order=keys).sort_values("order", ignore_index=True)
    return groups.assign(name=unique_labels(groups))


def metrics_of(task: str) -> Sequence[str]:
    """Returns the metrics of a task, or of pretraining if the task is empty."""
    return TASKS[task].metrics if task else PRETRAINING_METRICS


def over_runs(group: Mapping[str, Any], split: str, metric: str) -> dict[str, float] | None:
    """Returns statistics of a metric over seeds, and its standard error over examples as `error`."""
    values = [run.get(f"{split}.{metric}", math.nan) for run in group["runs"]]
    if any(map(math.isnan, values)):
        return None
    errors = [_error(run, split, metric) for run in group["runs"]]
    return {**over_seeds(values), "error": statistics.fmean(errors)}


def table_2(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns Table 2 of the paper: one row per model of these runs, and the published rows.

    It has the columns that these runs have. Of several settings, the best on validation is shown.
    """
    rows = []
    for model, own in groups[groups["task"] != ""].groupby("model", sort=False):
        cells = {column.title: _best_cell(own, column) for column in COLUMNS}
        if any(cells.values()):
            rows.append(
                {"model": model, **{name: cell or "not run" for name, cell in cells.items()}}
            )
    rows.sort(key=lambda row: list(row.values()).count("not run"))
    shown = [c.title for c in COLUMNS if any(row[c.title] != "not run" for row in rows)]
    paper = [
        {"model": model}
        | dict(zip([c.title for c in COLUMNS], map("{:.1f}".format, values), strict=True))
        for model, values in TABLE_2.items()
    ]
    if not shown:
        return pd.DataFrame()
    sections = {"This code": pd.DataFrame(rows), SOURCE: pd.DataFrame(paper)}
    return in_sections(
        {title: table[["model", *shown]] for title, table in sections.items() if len(table)}
    )


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


def settings_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with one row per setting of a task: all metrics over seeds."""
    rows = []
    for own in groups.to_dict("records"):
        main = over_runs(own, "valid", TASKS[own["task"]].select_by) or {}
        half_width = main.get("half_width", math.nan)
        rows.append(
            {
                "setting": own["name"] + (", partial" if own["is_partial"] else ""),
                "seeds": ", ".join(str(run["seed"]) for run in own["runs"]),
                **{
                    _title(*name): _of_seeds(over_runs(own, *name), name[1])
                    for name in _shown(groups)
                },
                "95 % t interval": NOTHING
                if math.isnan(half_width)
                else f"± {100 * half_width:.2f}",
                "steps": f"{own['runs'][0]['done_steps']:,}",
            }
        )
    return pd.DataFrame(rows)


def runs_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with one row per run of a task: metrics with standard errors over examples."""
    rows = [
        {
            "run": run["name"],
            "setting": own["name"],
            "seed": str(run["seed"]),
            **{
                _title(*name): format_spread(100 * run[".".join(name)], 100 * _error(run, *name))
                for name in _shown(groups)
                if not math.isnan(run.get(".".join(name), math.nan))
            },
            "examples": _count(run, "valid_examples"),
            "best step": f"{run['best_step']:,} of {run['done_steps']:,}",
            "s per step": format_3sf(run["step_seconds"]),
            "device": run["device"] or NOTHING,
        }
        for own in groups.to_dict("records")
        for run in own["runs"]
    ]
    return pd.DataFrame(rows).fillna(NOTHING)


def pretraining_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with one row per pretrained model, and the context-free baselines."""
    rows = [
        {
            "model": own["name"] + (", partial" if own["is_partial"] else ""),
            "seeds": ", ".join(str(run["seed"]) for run in own["runs"]),
            **{
                TITLES[name]: _of_seeds(over_runs(own, "valid", name), name)
                for name in PRETRAINING_METRICS
            },
            "parameters, M": _count(own["runs"][0], "parameters", 1e6),
            "steps": f"{own['runs'][0]['done_steps']:,}",
            "held-out pairs": _count(own["runs"][0], "valid_examples"),
        }
        for own in groups.to_dict("records")
    ]
    known = baselines(groups)
    trivial = {
        "model": "most frequent token and constant order (accuracies), unigram frequencies (loss)",
        **{
            TITLES[name]: _plain(known[name], name) for name in PRETRAINING_METRICS if name in known
        },
    }
    without = pd.DataFrame([trivial] if known else [], columns=list(rows[0]))
    return in_sections({"": pd.DataFrame(rows), "Without context": without})


def baselines(groups: pd.DataFrame) -> Mapping[str, float]:
    """Returns the metrics of context-free baselines, if all runs with baselines agree."""
    known = [run["baselines"] for own in groups["runs"] for run in own if run["baselines"]]
    return known[0] if known and all(one == known[0] for one in known) else {}


def _best_cell(groups: pd.DataFrame, column: Column) -> str:
    """Returns a cell of Table 2: mean and deviation over seeds; for one seed, the error over examples."""
    own = groups[groups["task"] == column.task].to_dict("records")
    if not own:
        return ""
    ranks = [
        (
            not one["is_partial"],
            (over_runs(one, "valid", TASKS[column.task].select_by) or {}).get("mean", 0),
        )
        for one in own
    ]
    best = own[ranks.index(max(ranks))]
    cell = over_runs(best, column.split, column.metric)
    if not cell:
        return ""
    words = f"{format_spread(100 * cell['mean'], 100 * cell['deviation'])} (n = {cell['n']})"
    if cell["n"] == 1:
        error = "" if math.isnan(cell["error"]) else f" (s.e. {100 * cell['error']:.2f})"
        words = f"{100 * cell['mean']:.2f}{error}"
    words += f", best of {len(own)}" if len(own) > 1 else ""
    return f"{words}, partial" if best["is_partial"] else words


def _gain(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, str] | None:
    """Returns the row of a gain over the common seeds; None without them or without predictions."""
    ours, theirs = ({run["seed"]: run for run in own["runs"]} for own in (one, other))
    seeds = sorted(ours.keys() & theirs.keys())
    answers = [[_correct(runs[seed]) for seed in seeds] for runs in (ours, theirs)]
    if not seeds or not all(own for runs in answers for own in runs):
        return None
    names = answers[0][0].keys()
    if any(own.keys() != names for runs in answers for own in runs):
        runs = ", ".join(run["name"] for run in (*one["runs"], *other["runs"]))
        raise ValueError(f"{runs} predicted different examples; compare runs on the same data.")
    right = [np.mean([[own[name] for name in names] for own in runs], axis=0) for runs in answers]
    differences = right[0] - right[1]
    error = (
        differences.std(ddof=1) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    )
    return {
        "task": TASKS[one["task"]].title,
        "model": one["model"],
        "seeds": ", ".join(map(str, seeds)),
        "examples": f"{len(differences):,}",
        "from scratch, %": f"{100 * right[1].mean():.2f}",
        "pretrained, %": f"{100 * right[0].mean():.2f}",
        "difference ± s.e.": f"{format_difference(100 * differences.mean())} ± {100 * error:.2f}",
    }


def _correct(run: Mapping[str, Any]) -> Mapping[str, np.bool]:
    """Returns {example id: True if correct} on the test set if it was scored, else on the validation set.

    The result is empty for regression, and without a file of labeled predictions.
    """
    task = TASKS[run["task"]]
    split = "test" if not math.isnan(run.get("test.accuracy", math.nan)) else "valid"
    file = Path(run["folder"], "predictions", task.file_name(split))
    if task.is_regression or not file.is_file():
        return {}
    ids, predictions, labels = read_predictions(task, file)
    if labels is None:
        return {}
    return dict(zip(ids.tolist(), predictions == labels, strict=True))


def _beyond_start(group: Mapping[str, Any]) -> set[Any]:
    return {item for item in group["setting"] if item[0] not in START}


def _error(run: Mapping[str, Any], split: str, metric: str) -> float:
    """Returns the standard error of a metric over examples; NaN if unknown."""
    known = float(run.get(f"{split}_standard_error.{metric}", math.nan))
    examples = run.get(f"{split}_examples", 0)
    if math.isnan(known) and metric == "accuracy" and examples > 0:
        return binomial_error(run[f"{split}.{metric}"], examples)
    return known


def _shown(groups: pd.DataFrame) -> list[tuple[str, str]]:
    """Returns all (split, metric) pairs that exist in the runs of a task, in the order of the task."""
    runs = [run for own in groups["runs"] for run in own]
    return [
        (split, metric)
        for split in SPLIT_TITLES
        for metric in metrics_of(groups["task"].iloc[0])
        if any(not math.isnan(run.get(f"{split}.{metric}", math.nan)) for run in runs)
    ]


def _title(split: str, metric: str) -> str:
    return f"{SPLIT_TITLES[split]}{TITLES[metric]}, %"


def _count(run: Mapping[str, Any], key: str, unit: float = 1) -> str:
    value = run.get(key, math.nan)
    return NOTHING if math.isnan(value) else f"{value / unit:,.{0 if unit == 1 else 1}f}"


def _plain(value: float, metric: str) -> str:
    if metric == "perplexity":
        return format_3sf(value)
    return f"{value:.3f}" if metric == "mlm_loss" else f"{100 * value:.2f}"


def _of_seeds(cell: Mapping[str, float] | None, metric: str) -> str:
    if cell is None:
        return NOTHING
    if cell["n"] == 1:
        return _plain(cell["mean"], metric)
    return f"{_plain(cell['mean'], metric)} ± {_plain(cell['deviation'], metric)}"
