"""Tables of the report on benchmark runs."""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from lra.data import mqar
from lra.report.groups import compare, mean_over, same_inputs, task_rank
from lra.report.published import COLUMNS, PATH_X, TABLE, TITLES, Published, Source, title_of
from nystromformer_jax.support.spelling import nearest
from reporting.records import recipe_words
from reporting.statistics import binomial_error, format_spread
from reporting.tables import NOTHING, format_3sf, format_difference, format_p, in_sections

NOT_RUN = "not run"
OURS = "This code"


def table3(
    groups: pd.DataFrame,
    published: Mapping[Source, Sequence[Published]] = TABLE,
    *,
    include_partial: bool = False,
    more_tasks: Sequence[str] = (),
) -> pd.DataFrame:
    """Returns Table 3 of the paper, with rows of this code and of other publications, in sections.

    It has the tasks that this code has run. With `include_partial`, partial runs have a number, marked as
    partial. `more_tasks` are tasks outside of the benchmark, which get a column each.
    """
    ours: dict[str, list[dict[str, str]]] = {}
    found = rows_of(groups[groups["task"].isin([*TITLES, *more_tasks])], include_partial)
    known = {task for cells in found.values() for task in cells}
    tasks = [task for task in (*TITLES, *more_tasks) if task in known]
    for (recipe, label), cells in found.items():
        row = {"test accuracy, %": label}
        row |= {
            title_of(task): _cell(cells[task], include_partial) if task in cells else NOT_RUN
            for task in tasks
        }
        row |= {name: _mean(of, cells) for name, of in means_of(tasks).items()}
        ours.setdefault(recipe, []).append(row)
    titles = {"": OURS, "paper": f"{OURS}, the paper's recipe"}
    sections = {
        titles.get(recipe, f"{OURS}, {recipe_words(recipe)}"): pd.DataFrame(ours[recipe])
        for recipe in sorted(ours, key=lambda recipe: (recipe != "paper", recipe))
    }
    for source, models in published.items():
        rows = [_published(model, tasks) for model in models]
        sections[source.title] = pd.DataFrame([row for row in rows if len(row) > 1])
    order = [
        "test accuracy, %",
        *(title_of(task) for task in tasks if task in COLUMNS),
        "mean of 5",
    ]
    order += [
        TITLES[PATH_X],
        "mean of 6",
        *(title_of(task) for task in tasks if task not in TITLES),
    ]
    if not any(map(len, sections.values())):  # nothing has finished
        return pd.DataFrame(columns=order[:1])
    table = in_sections(sections)
    kept = [name for name in order if name in table.columns and name in _used(ours)]
    text: pd.DataFrame = table[kept].where(table[kept] != "", NOTHING)
    text.loc[text.index != "", kept[1:]] = ""
    return text


def select(
    table: pd.DataFrame, columns: Sequence[str], sources: Sequence[str] | None, *, n: bool
) -> pd.DataFrame:
    """Returns a choice of columns and sections of a `table3`.

    `columns` are headings; by default all. `sources` are beginnings of the titles of published rows; None for
    all. Our rows are always there. Without `n`, the cells do not have the number of seeds.

    Raises:
      ValueError: A heading is unknown.
    """
    if unknown := [name for name in columns if name not in table.columns]:
        raise ValueError(f"--columns: no column {unknown[0]!r}{nearest(unknown[0], table.columns)}")
    table = table[[table.columns[0], *(columns or table.columns[1:])]]
    if sources is not None and len(table):
        titles = pd.Series(table.index, table.index).replace("", None).ffill()
        table = table[titles.str.startswith((OURS, *sources)).to_numpy()]
    return table if n else table.replace(r" \(n = [^)]*\)", "", regex=True)


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
        complete = own[own["state"] == "complete"].to_dict("records")
        furthest = own.sort_values(["n", "done_steps"])
        for group in complete or furthest[-1:].to_dict("records"):
            name = group["name"]
            if words := recipe_words(recipe):
                name = name.replace(f", {words}", "")
            key = name if complete else label
            rows.setdefault((recipe, key), {})[group["task"]] = group
    shown = {"complete", "diverged", *(["partial"] if include_partial else [])}
    kept = {
        key: cells
        for key, cells in rows.items()
        if any(group["state"] in shown for group in cells.values())
    }
    return dict(
        sorted(
            kept.items(),
            key=lambda item: -sum(group["state"] == "complete" for group in item[1].values()),
        )
    )


def settings_table(groups: pd.DataFrame, trivial: Mapping[str, float]) -> pd.DataFrame:
    """Returns a table of one task with a row per setting and per trivial predictor.

    The seconds per step are shown if they can be compared; see `same_inputs`.
    """
    found = groups.to_dict("records")
    timed = same_inputs([group for group in found if group["step_seconds"] > 0])
    rows = []
    for group in found:
        row = {
            "attention": group["name"],
            "seeds": ", ".join(map(str, group["seeds"])) + _of_total(group),
            "test accuracy, %": _accuracy(group),
            "binomial error": _number(group["binomial_error"]),
            "95 % interval": _interval(group),
            "validation, %": format_spread(group["valid"], group["valid_deviation"])
            if group["valid"] > 0
            else NOTHING,
            "steps": _steps(group),
        }
        if timed:
            row["s per step"] = format_3sf(group["step_seconds"])
        row["memory, GiB"] = _number(group["peak_bytes"] / 2**30)
        row["parameters"] = f"{group['parameters']:,.0f}" if group["parameters"] > 0 else NOTHING
        rows.append(row)
    predictors = [
        {"attention": name, "test accuracy, %": f"{value:.2f}"} for name, value in trivial.items()
    ]
    sections = {
        "": pd.DataFrame(rows),
        "Trivial predictors": pd.DataFrame(predictors, columns=list(rows[0])),
    }
    return in_sections(sections)


def comparisons_table(comparisons: pd.DataFrame) -> pd.DataFrame:
    """Returns a table of the differences between settings."""
    return pd.DataFrame(
        {
            "difference, points": comparisons["first"] + " − " + comparisons["second"],
            "seeds": [
                ", ".join(map(str, seeds)) or "none in common" for seeds in comparisons["seeds"]
            ],
            "mean": comparisons["difference"].map(format_difference),
            "95 % t interval": comparisons["half_width"].map(_plus_minus),
            "binomial error": comparisons["binomial_error"].map(_plus_minus),
            "p": comparisons["p"].map(format_p),
            "p, Holm": comparisons["p_holm"].map(format_p),
        }
    )


def control(groups: pd.DataFrame, recipe: str) -> pd.DataFrame:
    """Returns what Nyström attention adds to a recipe, by task: a row of `compare` per task, first − second.

    Its columns also have the two groups, `with` and `without` attention.
    """
    every = compare(groups)
    rows = []
    for task in sorted(set(groups["task"]), key=task_rank):
        own = groups[(groups["task"] == task) & (groups["recipe"] == recipe) & (groups["n"] > 0)]
        ours = own[(own["attention"] == "nystrom") & ~own["label"].str.contains("=")]
        none = own[own["label"] == "none"]
        if not (len(ours) and len(none)):
            continue
        pair = pd.concat([ours[:1], none[:1]])
        if len(found := compare(pair)):
            names = set(pair["name"])
            same = every[
                (every["task"] == task) & every["first"].isin(names) & every["second"].isin(names)
            ]
            p_holm = same["p_holm"].iloc[0] if len(same) else math.nan
            rows.append(
                {**found.iloc[0], "p_holm": p_holm, "with": ours.iloc[0], "without": none.iloc[0]}
            )
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
                "error": NOTHING if math.isnan(size) else f"± {size:.2f}, {kind}",
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
        accuracy = run["state"] if run["state"] != "validated" else "not tested"
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
                "best step": f"{run['best_step']:,.0f}"
                if (run.get("best_step") or 0) > 0
                else NOTHING,
                "steps": _progress(run["done_steps"], run["budget_steps"]),
                "s per step": format_3sf(run["step_seconds"]),
                "device": run["device"] or NOTHING,
            }
        )
    return pd.DataFrame(rows)


def recall_table(groups: pd.DataFrame) -> pd.DataFrame:
    """Returns accuracies on MQAR: attentions in rows, numbers of pairs in columns, a section per length."""
    sections = {}
    for length, own in groups.groupby("length"):
        cells = own.assign(
            cell=[
                format_spread(mean, deviation, 1)
                for mean, deviation in zip(own["mean"], own["deviation"], strict=True)
            ]
        )
        table = cells.pivot(index="name", columns="pairs", values="cell").fillna(NOTHING)
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


def means_of(tasks: Collection[str]) -> dict[str, list[str]]:
    """Returns the tasks of each mean: of 5, and of 6 with Path-X, if all have run."""
    found = {"mean of 5": list(COLUMNS), "mean of 6": list(TITLES)}
    return {name: own for name, own in found.items() if set(own) <= set(tasks)}


def _natural(label: str) -> tuple[Hashable, ...]:
    """Returns a sort key: letters first, then numbers by size."""
    name, _, number = label.partition(",")[0].partition("-")
    return name, int(number) if number.isdigit() else 0, label


def _used(ours: Mapping[str, Sequence[Mapping[str, str]]]) -> set[str]:
    return {
        name
        for rows in ours.values()
        for row in rows
        for name, cell in row.items()
        if cell not in (NOT_RUN, NOTHING, "partial", "not finished")
    }


def _cell(group: Mapping[str, Any], include_partial: bool) -> str:
    if group["state"] == "partial" and not include_partial:
        return "partial"
    if not group["n"]:
        return "diverged" if group["state"] == "diverged" else "not finished"
    partial = ", partial" if group["state"] == "partial" else ""
    n = f"(n = {group['n']}{_of_total(group)})"
    return f"{format_spread(group['mean'], group['deviation'])} {n}{partial}"


def _mean(tasks: Collection[str], cells: Mapping[str, Mapping[str, Any]]) -> str:
    own = [cells[task] for task in tasks if task in cells]
    if len(own) < len(tasks) or any(group["state"] != "complete" for group in own):
        return NOTHING
    mean = mean_over(own)
    return f"{format_spread(mean.mean, mean.deviation)} (n = {mean.n})"


def _published(row: Published, tasks: Collection[str]) -> dict[str, str]:
    accuracies = dict(zip(COLUMNS, row.accuracies, strict=True)) | {PATH_X: row.path_x}
    values = {title_of(task): value for task, value in accuracies.items() if task in tasks}
    values |= {"mean of 5": row.mean, "mean of 6": row.mean_of_six} if values else {}
    cells = {
        name: value if isinstance(value, str) else f"{value:.2f}"
        for name, value in values.items()
        if value is not None
    }
    return {"test accuracy, %": row.model, **cells}


def _of_total(group: Mapping[str, Any]) -> str:
    """Returns " of N", and the number of diverged runs, if some of the N runs are not scored."""
    if group["runs"] <= len(group["seeds"]):
        return ""
    diverged = f", {group['diverged']} diverged" if group["diverged"] else ""
    return f" of {group['runs']}{diverged}"


def _accuracy(group: Mapping[str, Any]) -> str:
    if not group["n"]:
        return {"validated": "not tested", "diverged": "diverged"}.get(
            group["state"], "not finished"
        )
    partial = ", partial" if group["state"] == "partial" else ""
    return f"{format_spread(group['mean'], group['deviation'])}{partial}"


def _interval(group: Mapping[str, Any]) -> str:
    half_width = group.get("half_width", math.nan)
    if math.isnan(half_width):
        return NOTHING
    low, high = group["mean"] - half_width, group["mean"] + half_width
    return f"{low:.2f} to {high:.2f}".replace("-", "−")


def _steps(group: Mapping[str, Any]) -> str:
    return _progress(group["done_steps"], group["budget_steps"])


def _progress(done: int, budget: int) -> str:
    return f"{done:,} of {budget:,}" if done < budget else f"{done:,}"


def _number(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.2f}"


def _plus_minus(value: float) -> str:
    return NOTHING if math.isnan(value) else f"± {value:.2f}"
