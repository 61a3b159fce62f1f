"""The report as Markdown: the verdict, a bar chart, Table 3, curves, then every setting and run."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra.data import mqar
from lra.report import plots, tables
from lra.report.groups import compare, differ_only_in_attention, group, trivial_of
from lra.report.published import PAPER, TABLE, TITLES, title_of
from reporting.records import recipe_words
from reporting.tables import latex, markdown
from reporting.writer import bullets, join, picture

TASKS_URL = "https://arxiv.org/abs/2011.04006"


def make(
    runs: pd.DataFrame,
    left_out: Sequence[str],
    path: Path,
    *,
    include_partial: bool = False,
) -> dict[str, str]:
    """Draws the figures and returns the texts of the report, see `reporting.writer.main`.

    With `include_partial`, Table 3 shows partial runs.
    """
    groups = group(runs)
    main = groups[~groups["task"].map(lambda task: bool(mqar.size_of(task)))]
    tasks = list(dict.fromkeys(main["task"]))
    trivial = {task: trivial_of(runs, task) for task in tasks}
    best = best_recipe(main, trivial)
    parts = ["# Long Range Arena: results", verdict(groups, best)]
    if len(best):
        description = "Test accuracies by task: the paper, this code, trivial predictors."
        parts.append(picture(path, "bars", plots.plot_bars(best), description))
    table3 = tables.table3(main, include_partial=include_partial)
    if len(table3):
        parts += [
            "## Comparison with published results",
            "Test accuracy at the step with the best validation accuracy: mean ± standard deviation over n"
            " seeds. Partial runs have fewer steps or examples than their recipe, and no mean includes them."
            + ("" if include_partial else " They are shown with `--include_partial`."),
            markdown(table3),
        ]
    comparisons = compare(groups)
    for task in tasks:
        own = main[main["task"] == task]
        curves = plots.plot_curves(own, trivial[task])
        slug, title = re.sub(r"[^\w-]+", "-", task), title_of(task)
        parts += [
            f"## {title}",
            "" if task in TITLES else "These numbers cannot be compared with published ones.",
            picture(path, f"curves-{slug}", curves, f"Learning curves on {title}."),
            markdown(tables.settings_table(own, trivial[task])),
        ]
        pairs = comparisons[comparisons["task"] == task]
        if len(pairs):
            parts += [
                "Differences between settings of one budget, in points: paired over common seeds, with"
                " Student's t-test and Holm's correction for all tests of this report, or between single"
                " seeds, with the binomial standard error.",
                markdown(tables.comparisons_table(pairs)),
            ]
    finished = tables.recall_groups(groups)
    if len(finished):
        description = "Accuracy on MQAR against the number of pairs."
        parts += [
            "## Associative recall (MQAR)",
            "Accuracy of the answers on the test set by number of pairs, in percent.",
            picture(path, "recall", plots.plot_recall(finished), description),
            markdown(tables.recall_table(finished)),
        ]
    versions = list(dict.fromkeys(filter(None, runs["versions"])))
    links = [
        (f"[{source.title}]({source.url})" if source.url else source.title)
        + (f": {source.remark}" if source.remark else "")
        for source in TABLE
    ]
    parts += [
        "## Every run",
        f"Accuracies with their binomial standard errors. `{path.name}.runs.csv` has the command, config,"
        " hashes, device and versions of every run.",
        markdown(tables.runs_table(runs, groups)),
        *(["Versions:", bullets(versions)] if versions else []),
        *(["Left out:", bullets(left_out)] if left_out else []),
        "## Sources",
        bullets([*links, f"[The tasks and their measures]({TASKS_URL}): Tay et al. 2021."]),
    ]
    others = [task for task in tasks if task not in TITLES]
    latex_table = tables.table3(main, include_partial=include_partial, more_tasks=others)
    return {
        "md": join(parts),
        "csv": groups.drop(columns=["setting", "accuracies", "members"]).to_csv(index=False),
        "tex": latex(latex_table),
    }


def best_recipe(groups: pd.DataFrame, trivial: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Returns a row per complete task of this code's best recipe.

    It is the row of Table 3 with the most complete tasks, then with the highest mean. Rows of Nyström
    attention come first. The control is the same recipe without attention.

    Columns: task, label, recipe, n, gain (by attention, as text); accuracies in percent, NaN if unknown:
    "the paper", "this code", "without attention", "trivial predictor"; and "deviation" and
    "deviation without" attention.
    """
    found = {
        key: {task: cell for task, cell in cells.items() if cell["state"] == "complete"}
        for key, cells in tables.rows_of(groups, include_partial=False).items()
    }

    def rank(key: tuple[str, str]) -> tuple[Any, ...]:
        cells = found[key].values()
        ours = any(cell["attention"] == "nystrom" for cell in cells)
        return ours, len(cells), sum(cell["mean"] for cell in cells)

    best = max((key for key in found if found[key]), key=rank, default=("", ""))
    controls = found.get((best[0], "none"), {})
    [paper] = [row for row in TABLE[PAPER] if row["model"] == "Nyströmformer"]
    rows = []
    for task, own in found.get(best, {}).items():
        control = controls.get(task)
        if control is own or (control and not differ_only_in_attention(own, control)):
            control = None
        rows.append(
            {
                **{name: own[name] for name in ("task", "label", "recipe", "n", "deviation")},
                "the paper": paper.get(task, math.nan),
                "this code": own["mean"],
                "without attention": control["mean"] if control else math.nan,
                "deviation without": control["deviation"] if control else math.nan,
                "trivial predictor": max(trivial.get(task, {}).values(), default=math.nan),
                "gain": _gain(own, control) if control else "",
            }
        )
    return pd.DataFrame(rows)


def verdict(groups: pd.DataFrame, best: pd.DataFrame) -> str:
    """Returns up to five sentences about what was found; `best` is the `best_recipe`."""
    sentences = _findings(best) if len(best) else []
    states = {"partial": "partial", "validated": "not tested"} | {
        state: state for state in ("diverged", "unfinished")
    }
    counts = {name: int((groups["state"] == state).sum()) for state, name in states.items()}
    if others := [f"{count} {name}" for name, count in counts.items() if count]:
        sentences.append(f"Settings without a complete run do not count: {_list(others)}.")
    return " ".join(sentences)


def _findings(best: pd.DataFrame) -> list[str]:
    label, recipe = best.iloc[0]["label"], best.iloc[0]["recipe"]
    titles, ours = best["task"].map(title_of), best["this code"]
    sentences = []
    is_shared = best["the paper"].notna()
    if is_shared.any():
        mean, paper = ours[is_shared].mean(), best["the paper"].mean()
        words = {"paper": "the paper's recipe", "": "its config"}.get(recipe, recipe_words(recipe))
        sentences.append(
            f"The best of this code, {label} with {words}, {'beats' if mean > paper else 'stays below'}"
            f" the paper's Nyströmformer: on {_list(titles[is_shared])} it reaches {mean:.1f} %"
            f"{' on average' if is_shared.sum() > 1 else ''}, the paper {paper:.1f} %."
        )
    if gains := list(filter(None, best["gain"])):
        sentences.append(
            f"Attention adds {_list(gains)} to the same model without attention (± 95 % interval, or"
            " binomial standard error of one seed)."
        )
    margins = ours - best["trivial predictor"]
    worse, near = titles[margins <= 0], titles[(margins > 0) & (margins < 5)]
    if len(worse):
        sentences.append(f"A trivial predictor is better on {_list(worse)}.")
    if len(near):
        sentences.append(
            f"A trivial predictor comes within 5 points of it on {_list(near)}, so these accuracies say"
            " little about attention."
        )
    if margins.min() >= 5:
        sentences.append(f"{label} is at least 5 points above every trivial predictor.")
    seeds, spread = sorted(set(best["n"])), best["deviation"].max()
    words = f", with a standard deviation of at most {spread:.1f} points" if spread > 0 else ""
    noun = "seed" if seeds == [1] else "seeds"
    sentences.append(f"These are means over {' or '.join(map(str, seeds))} {noun}{words}.")
    return sentences


def _gain(ours: Mapping[str, Any], none: Mapping[str, Any]) -> str:
    """Returns what attention adds on a task as text; empty if the budgets differ."""
    found = compare(pd.DataFrame([ours, none]))
    if not len(found):
        return ""
    one = found.iloc[0]
    known = [x for x in (one["half_width"], one["binomial_error"]) if not math.isnan(x)]
    error = f" ± {known[0]:.1f}" if known else ""
    difference = f"{one['difference']:.1f}".replace("-", "−")
    return f"{difference}{error} points on {title_of(ours['task'])}"


def _list(words: Sequence[str] | pd.Series) -> str:
    *others, last = words
    return " and ".join(filter(None, [", ".join(others), last]))
