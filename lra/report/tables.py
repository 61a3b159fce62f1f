"""Tables of the report on benchmark runs."""

import itertools
import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from lra.data import mqar
from lra.report.groups import compare, differ_only_in_attention, mean_over
from lra.report.published import COLUMNS, PATH_X, TABLE, TITLES, Published, title_of
from reporting.records import recipe_words
from reporting.statistics import binomial_error, format_spread
from reporting.tables import (
    NOTHING,
    comparison,
    format_3sf,
    format_difference,
    format_known,
    format_p,
    in_sections,
)

OURS = "This code"
LABEL = "test accuracy, %"  # heading of the labels in Table 3
NOT_RUN = "not run"
WITHOUT_NUMBER = (NOT_RUN, NOTHING, "partial", "not finished", "not tested")


def table3(
    groups: pd.DataFrame, *, include_partial: bool = False, more_tasks: Sequence[str] = ()
) -> pd.DataFrame:
    """Returns Table 3 of the paper, with rows of this code and of other publications, in sections.

    It has the tasks that this code has run. With `include_partial`, partial runs have a number, marked as
    partial. `more_tasks` are tasks outside of the benchmark, which get a column each.
    """
    found = rows_of(groups[groups["task"].isin([*TITLES, *more_tasks])], include_partial)
    sections: dict[str, Any] = {}
    for recipe, label in sorted(found, key=lambda key: (key[0] != "paper", key[0])):
        cells = found[recipe, label]
        row = {LABEL: label, "mean of 5": _mean(cells, COLUMNS), "mean of 6": _mean(cells, TITLES)}
        row |= {task: _cell(cells.get(task), include_partial) for task in (*TITLES, *more_tasks)}
        words = "the paper's recipe" if recipe == "paper" else recipe_words(recipe)
        sections.setdefault(", ".join(filter(None, [OURS, words])), []).append(row)
    columns = (*COLUMNS, "mean of 5", PATH_X, "mean of 6", *more_tasks)
    known = {source.title: list(map(_published, models)) for source, models in TABLE.items()}
    table = comparison(LABEL, sections, known, columns, WITHOUT_NUMBER)
    return table.rename(columns={task: title_of(task) for task in (*TITLES, *more_tasks)})


def rows_of(
    groups: pd.DataFrame, include_partial: bool
) -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Returns the rows of this code: for each recipe and label, a group per task.

    If a label has complete groups on a task, these are shown, else the group with the most steps. Rows with
    most complete tasks come first. Without `include_partial`, labels without a complete or diverged group
    have no row.
    """
    rows: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for (_, recipe, label), own in groups.groupby(["task", "recipe", "label"], sort=False):
        complete = own[own["state"] == "complete"]
        shown = complete if len(complete) else own.sort_values(["n", "done_steps"])[-1:]
        words = recipe_words(recipe)
        for group in shown.to_dict("records"):
            name = group["name"].replace(f", {words}", "") if words else group["name"]
            row = rows.setdefault((recipe, name if len(complete) else label), {})
            row[group["task"]] = group
    states = {key: [group["state"] for group in row.values()] for key, row in rows.items()}
    shown_states = {"complete", "diverged", "partial" if include_partial else "complete"}
    kept = [key for key in rows if shown_states & set(states[key])]
    return {key: rows[key] for key in sorted(kept, key=lambda key: -states[key].count("complete"))}


def settings_table(groups: pd.DataFrame, trivial: Mapping[str, float]) -> pd.DataFrame:
    """Returns a table of one task with a row per setting and per trivial predictor."""
    rows = [
        {
            "attention": group["name"],
            "seeds": ", ".join(map(str, group["seeds"])) + _of_total(group),
            "test accuracy, %": _accuracy(group),
            "binomial error": format_known(group["binomial_error"]),
            "95 % interval": _interval(group),
            "validation, %": NOTHING
            if math.isnan(group["valid"])
            else format_spread(group["valid"], group["valid_deviation"]),
            "steps": _progress(group),
            "memory, GiB": format_known(group["peak_bytes"] / 2**30),
            "parameters": format_known(group["parameters"], "{:,.0f}"),
        }
        for group in groups.to_dict("records")
    ]
    predictors = [
        {"attention": name, "test accuracy, %": f"{value:.2f}"} for name, value in trivial.items()
    ]
    return in_sections({"": rows, "Trivial predictors": predictors})


def comparisons_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of the differences between settings."""
    rows = [
        {
            "difference, points": f"{one['first']} − {one['second']}",
            "seeds": ", ".join(map(str, one["seeds"])) or "none in common",
            "mean": format_difference(one["difference"]),
            "95 % t interval": format_known(one["half_width"], "± {:.2f}"),
            "binomial error": format_known(one["binomial_error"], "± {:.2f}"),
            "p": format_p(one["p"]),
            "p, Holm": format_p(one["p_holm"]),
        }
        for one in comparisons.to_dict("records")
    ]
    return pd.DataFrame(rows)


def control(groups: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """Returns what Nyström attention adds to a recipe, by task: a row of `compare` per task, first − second.

    Its columns also have the two groups, `with` and `without` attention.
    """
    every = compare(groups)
    rows = []
    scored = groups[(groups["recipe"] == recipe) & (groups["n"] > 0)]
    for task, own in scored.groupby("task", sort=False):
        found = own.to_dict("records")
        nystrom = [x for x in found if x["attention"] == "nystrom" and "=" not in x["label"]]
        none = [x for x in found if x["label"] == "none"]
        pairs = [
            (ours, theirs)
            for ours, theirs in itertools.product(nystrom, none)
            if ours["state"] == theirs["state"] and differ_only_in_attention(ours, theirs)
        ]
        for ours, theirs in pairs[:1]:
            names = [ours["name"], theirs["name"]]
            same = every[
                (every["task"] == task) & every["first"].isin(names) & every["second"].isin(names)
            ]
            p_holm = same["p_holm"].iloc[0] if len(same) else math.nan
            difference = compare(pd.DataFrame([ours, theirs])).iloc[0]
            rows.append({**difference, "p_holm": p_holm, "with": ours, "without": theirs})
    return pd.DataFrame(rows)


def control_table(found: pd.DataFrame) -> pd.DataFrame:
    """Returns the result of `control` as text."""
    rows = []
    for one in found.to_dict("records"):
        paired = len(one["seeds"]) > 1
        size = one["half_width"] if paired else one["binomial_error"]
        kind = "95 % t interval" if paired else "binomial standard error"
        seeds = [one["seeds"] or one[name]["seeds"] for name in ("with", "without")]
        rows.append(
            {
                "task": title_of(one["task"]),
                "seeds with": ", ".join(map(str, seeds[0])),
                "seeds without": ", ".join(map(str, seeds[1])),
                "with Nyström attention − without, points": format_difference(one["difference"]),
                "error": format_known(size, f"± {{:.2f}}, {kind}"),
                "p": format_p(one["p"]),
                "p, Holm": format_p(one["p_holm"]),
            }
        )
    return pd.DataFrame(rows)


def runs_table(runs: pd.DataFrame, groups: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with a row per run and binomial standard errors."""
    names = {(g["task"], g["setting"]): g["name"] for g in groups.to_dict("records")}
    rows = []
    for run in runs.to_dict("records"):
        accuracy = {"validated": "not tested"}.get(run["state"], run["state"])
        if run["state"] in ("complete", "partial"):
            error = binomial_error(run["test_accuracy"], run["test_examples"])
            accuracy = format_spread(100 * run["test_accuracy"], 100 * error)
            accuracy += ", partial" if run["state"] == "partial" else ""
        rows.append(
            {
                "run": run["name"],
                "task": title_of(run["task"]),
                "attention": names[run["task"], run["setting"]],
                "seed": str(run["seed"]),
                "test accuracy, %": accuracy,
                "best step": format_known(run.get("best_step"), "{:,.0f}"),
                "steps": _progress(run),
                "s per step": format_3sf(run["step_seconds"]),
                "device": run["device"] or NOTHING,
            }
        )
    return pd.DataFrame(rows)


def recall_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns accuracies on MQAR: attentions in rows, numbers of pairs in columns, a section per length."""
    sections = {}
    spreads = [format_spread(*x, 1) for x in zip(groups["mean"], groups["deviation"], strict=True)]
    for length, own in groups.assign(cell=spreads).groupby("length"):
        table = own.pivot(index="name", columns="pairs", values="cell").fillna(NOTHING)
        table = table.loc[sorted(table.index, key=_natural)]
        table.columns = [f"{pairs} pairs" for pairs in table.columns]
        sections[f"{length:,} tokens"] = table.reset_index(names="attention")
    return in_sections(sections)


def recall_groups(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns the complete groups of MQAR, with the columns length and pairs."""
    sizes = {task: size for task in set(groups["task"]) if (size := mqar.size_of(task))}
    own = groups[groups["task"].isin(sizes) & (groups["state"] == "complete")]
    return own.assign(
        length=[sizes[task][0] for task in own["task"]],
        pairs=[sizes[task][1] for task in own["task"]],
    )


def _natural(label: str) -> tuple[Hashable, ...]:
    """Returns a sort key: letters first, then numbers by size."""
    name, _, number = label.partition(",")[0].partition("-")
    return name, int(number) if number.isdecimal() else 0, label


def _cell(group: Mapping[str, Any] | None, include_partial: bool) -> str:
    """Returns a cell of Table 3."""
    if group is None:
        return NOT_RUN
    if group["state"] == "partial" and not include_partial:
        return "partial"
    return _accuracy(group, f" (n = {group['n']}{_of_total(group)})")


def _mean(cells: Mapping[str, Mapping[str, Any]], tasks: Collection[str]) -> str:
    """Returns the mean over tasks, if all are complete."""
    own = [cells[task] for task in tasks if task in cells and cells[task]["state"] == "complete"]
    if len(own) < len(tasks):
        return NOTHING
    mean = mean_over(own)
    return f"{format_spread(mean.mean, mean.deviation)} (n = {mean.n})"


def _published(row: Published) -> dict[str, str]:
    """Returns the cells of a published row."""
    cells = {
        name: value if isinstance(value, str) else f"{value:.2f}" for name, value in row.items()
    }
    return {LABEL: cells.pop("model"), **cells}


def _of_total(group: Mapping[str, Any]) -> str:
    """Returns " of N", and the number of diverged runs, if some of the N runs are not scored."""
    if group["runs"] <= len(group["seeds"]):
        return ""
    diverged = f", {group['diverged']} diverged" if group["diverged"] else ""
    return f" of {group['runs']}{diverged}"


def _accuracy(group: Mapping[str, Any], n: str = "") -> str:
    """Returns the accuracy over seeds with the text `n`, or why there is none."""
    if not group["n"]:
        unscored = {"validated": "not tested", "diverged": "diverged"}
        return unscored.get(group["state"], "not finished")
    partial = ", partial" if group["state"] == "partial" else ""
    return f"{format_spread(group['mean'], group['deviation'])}{n}{partial}"


def _interval(group: Mapping[str, Any]) -> str:
    if math.isnan(group["half_width"]):
        return NOTHING
    low, high = (group["mean"] + sign * group["half_width"] for sign in (-1, 1))
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def _progress(row: Mapping[str, Any]) -> str:
    """Returns the steps of a run or group."""
    done, budget = row["done_steps"], row["budget_steps"]
    return f"{done:,} of {budget:,}" if done < budget else f"{done:,}"
