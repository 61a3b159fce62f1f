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
from lra.report.published import COLUMNS, PAPER, TABLE, TITLES, Source, read_published, title_of
from reporting.records import recipe_words
from reporting.tables import latex, markdown
from reporting.writer import bullets, join, picture

OBJECTS = ["metrics", "speed", "setting", "baselines"]  # columns that are not in the CSV files


def make(
    runs: pd.DataFrame,
    left_out: Sequence[str],
    path: Path,
    *,
    published: Path | None = None,
    include_partial: bool = False,
    columns: Sequence[str] = (),
    sources: Sequence[str] | None = None,
    without_n: bool = False,
) -> dict[str, str]:
    """Draws the figures and returns the texts of the report, see `reporting.writer.main`.

    `published` is a file with other published rows. With `include_partial`, Table 3 shows partial runs.
    `columns`, `sources` and `without_n` concern the table in LaTeX; see `tables.select`.
    """
    groups = group(runs)
    rows = {**TABLE, **(read_published(published) if published else {})}
    recalled = groups["task"].map(lambda task: bool(mqar.size_of(task)))
    main = groups[~recalled]
    tasks = list(dict.fromkeys(main["task"]))
    trivial = {task: trivial_of(runs, task) for task in tasks}
    best = best_rows(main)
    parts = ["# Long Range Arena: results", *verdict(groups, best, trivial)]
    if bars := bars_of(best, trivial):
        file = path.with_name(f"{path.name}-bars.png")
        plots.plot_bars(bars, file)
        parts.append(
            picture(file, "Test accuracies by task: the paper, this code, trivial predictors.")
        )
    table3 = tables.table3(main, rows, include_partial=include_partial)
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
        slug = re.sub(r"[^\w-]+", "-", task)
        curves = path.with_name(f"{path.name}-curves-{slug}.png")
        plots.plot_curves(own, runs, trivial[task], curves)
        parts += [
            f"## {title_of(task)}",
            "" if task in TITLES else "These numbers cannot be compared with published ones.",
            picture(curves, f"Learning curves on {title_of(task)}."),
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
        file = path.with_name(f"{path.name}-recall.png")
        plots.plot_recall(finished, file)
        parts += [
            "## Associative recall (MQAR)",
            "Accuracy of the answers on the test set by number of pairs, in percent.",
            picture(file, "Accuracy on MQAR against the number of pairs."),
            markdown(tables.recall_table(finished)),
        ]
    texts = {
        "md": join(
            [*parts, *_every_run(runs, groups, path), *_left_out(left_out), *_sources(rows)]
        ),
        "csv": groups.drop(columns=["setting", "accuracies"]).to_csv(index=False),
        "runs.csv": runs.drop(columns=OBJECTS).assign(folder=runs["name"]).to_csv(index=False),
    }
    others = [task for task in tasks if task not in TITLES]
    table = tables.table3(main, rows, include_partial=include_partial, more_tasks=others)
    return {**texts, "tex": latex(tables.select(table, columns, sources, n=not without_n))}


def best_rows(groups: pd.DataFrame) -> dict[str, dict[str, Any]]:
    """Returns the complete groups of this code's best recipe by task, and of its control.

    "this code" is the row of Table 3 with the most complete tasks, then with the highest mean. Rows of
    Nyström attention come first. "without attention" is the same recipe without attention.
    """
    found = {
        key: {task: cell for task, cell in cells.items() if cell["state"] == "complete"}
        for key, cells in tables.rows_of(groups, include_partial=False).items()
    }

    def rank(key: tuple[str, str]) -> tuple[Any, ...]:
        cells = found[key].values()
        ours = any(cell["attention"] == "nystrom" for cell in cells)
        return ours, len(cells), sum(cell["mean"] for cell in cells)

    best = max((key for key in found if found[key]), key=rank, default=None)
    if best is None:
        return {}
    ours, none = found[best], found.get((best[0], "none"), {})
    control = {
        task: none[task]
        for task in ours.keys() & none.keys()
        if ours[task] is not none[task] and differ_only_in_attention(ours[task], none[task])
    }
    return {"this code": ours, "without attention": control}


def bars_of(
    best: Mapping[str, Mapping[str, Any]], trivial: Mapping[str, Mapping[str, float]]
) -> dict[str, list[tuple[str, float, float]]]:
    """Returns (name, accuracy, deviation) of each bar by task."""
    bars = {}
    for task in best.get("this code", {}):
        own = [("the paper", paper_of(task), float("nan"))] if task in COLUMNS else []
        own += [
            (name, cells[task]["mean"], cells[task]["deviation"])
            for name, cells in best.items()
            if task in cells
        ]
        if trivial.get(task):
            own.append(("trivial predictor", max(trivial[task].values()), float("nan")))
        bars[task] = own
    return bars


def paper_of(task: str) -> float:
    """Returns the paper's accuracy of the Nyströmformer on a task of `COLUMNS`, in percent."""
    [row] = [row for row in TABLE[PAPER] if row.model == "Nyströmformer"]
    return float(dict(zip(COLUMNS, row.accuracies, strict=True))[task] or 0)


def verdict(
    groups: pd.DataFrame,
    best: Mapping[str, Mapping[str, Any]],
    trivial: Mapping[str, Mapping[str, float]],
) -> list[str]:
    """Returns up to five sentences about what was found."""
    ours, none = best.get("this code", {}), best.get("without attention", {})
    sentences = []
    if shared := [task for task in ours if task in COLUMNS]:
        first = ours[shared[0]]
        means = [
            sum(values) / len(shared)
            for values in (
                [ours[task]["mean"] for task in shared],
                [paper_of(task) for task in shared],
            )
        ]
        verb = "beats" if means[0] > means[1] else "stays below"
        sentences.append(
            f"The best of this code, {first['label']} with {_recipe(first['recipe'])}, {verb} the paper's"
            f" Nyströmformer: on {_list([title_of(task) for task in shared])} it reaches {means[0]:.1f} %"
            f"{' on average' if len(shared) > 1 else ''}, the paper {means[1]:.1f} %."
        )
    gains = [_gain(ours[task], none[task]) for task in ours if task in none]
    if found := list(filter(None, gains)):
        sentences.append(
            f"Attention adds {_list(found)} to the same model without attention (± 95 % interval, or"
            " binomial standard error of one seed)."
        )
    margins = {
        task: ours[task]["mean"] - max(trivial[task].values()) for task in ours if trivial.get(task)
    }
    worse = [title_of(task) for task, margin in margins.items() if margin <= 0]
    near = [title_of(task) for task, margin in margins.items() if 0 < margin < 5]
    if worse:
        sentences.append(f"A trivial predictor is better on {_list(worse)}.")
    if near:
        sentences.append(
            f"A trivial predictor comes within 5 points of it on {_list(near)}, so these accuracies say"
            " little about attention."
        )
    if margins and not (worse or near):
        sentences.append(
            f"{next(iter(ours.values()))['label']} is at least 5 points above every trivial predictor."
        )
    if ours:
        seeds = sorted({group["n"] for group in ours.values()})
        spread = max((group["deviation"] for group in ours.values() if group["n"] > 1), default=0)
        words = f", with a standard deviation of at most {spread:.1f} points" if spread else ""
        noun = "seed" if seeds == [1] else "seeds"
        sentences.append(f"These are means over {' or '.join(map(str, seeds))} {noun}{words}.")
    names = {
        "partial": "partial",
        "validated": "not tested",
        "diverged": "diverged",
        "unfinished": "unfinished",
    }
    counts = {name: int((groups["state"] == state).sum()) for state, name in names.items()}
    if others := [f"{count} {name}" for name, count in counts.items() if count]:
        sentences.append(f"Settings without a complete run do not count: {_list(others)}.")
    return [" ".join(sentences)]


def _gain(ours: Mapping[str, Any], none: Mapping[str, Any]) -> str:
    """Returns what attention adds on a task as text; empty if the budgets differ."""
    found = compare(pd.DataFrame([ours, none]))
    if not len(found):
        return ""
    one = found.iloc[0]
    known = [x for x in (one["half_width"], one["binomial_error"]) if not math.isnan(x)]
    error = f" ± {known[0]:.1f}" if known else ""
    return f"{one['difference']:.1f}{error} points on {title_of(ours['task'])}".replace("-", "−")


def _recipe(name: str) -> str:
    return {"paper": "the paper's recipe", "": "its config"}.get(name, recipe_words(name))


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _every_run(runs: pd.DataFrame, groups: pd.DataFrame, path: Path) -> list[str]:
    versions = list(dict.fromkeys(filter(None, runs["versions"])))
    return [
        "## Every run",
        f"Accuracies with their binomial standard errors. `{path.name}.runs.csv` has the command, config,"
        " hashes, device and versions of every run.",
        markdown(tables.runs_table(runs, groups)),
        "Versions:" if versions else "",
        bullets(versions),
    ]


def _left_out(sentences: Sequence[str]) -> list[str]:
    return ["Left out:", bullets(sentences)] if sentences else []


def _sources(rows: Mapping[Source, object]) -> list[str]:
    sources = [
        (f"[{source.title}]({source.url})" if source.url else source.title)
        + (f": {source.remark}" if source.remark else "")
        for source in rows
    ]
    tasks = "[The tasks and their measures](https://arxiv.org/abs/2011.04006): Tay et al. 2021."
    return ["## Sources", bullets([*sources, tasks])]
