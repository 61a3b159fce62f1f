"""The report as Markdown."""

import collections
import math
import re
import shlex
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from lra.report import plots, recall, tables, tuning
from lra.report.comparisons import Comparison, compare, grids
from lra.report.groups import MAX_RATIO, Group, labels_of, tasks_of
from lra.report.labels import (
    NEVER_DIFFERENCES,
    PRESET,
    RECIPES,
    affecting_results,
    config_file,
    config_values,
    default_setting,
    differences,
    is_option,
)
from lra.report.numbers import csv_of, numbers
from lra.report.published import (
    CHANCE,
    COLUMNS,
    FAILED,
    PATH_X,
    TABLE,
    TITLES,
    Source,
    read_published,
    title_of,
)
from lra.report.results import Run
from reporting.plotting import COLORS, colors_of
from reporting.runs import version_sentences
from reporting.tables import NOTHING, Table
from reporting.writer import Report, bullets, join, picture


def make(
    groups: Sequence[Group],
    left_out: Sequence[str],
    path: Path,
    *,
    published: Path | None = None,
    include_partial: bool = False,
    columns: Sequence[str] = (),
    sources: Sequence[str] | None = None,
    without_n: bool = False,
) -> Report:
    """Draws the figures and returns the report, see `reporting.writer.main`.

    `published` is a file with other published rows. With `include_partial`, Table 3 shows partial runs.
    `columns`, `sources` and `without_n` concern the table in LaTeX; see `tables.latex`.
    """
    every, tested = groups, tuning.select_tested(groups)
    recalled, groups = recall.split(tested)
    published_rows = {**TABLE, **(read_published(published) if published else {})}
    table3 = tables.benchmark_table(groups, published_rows, include_partial=include_partial)
    colors = colors_of(labels_of(groups))
    comparisons = compare(tested)  # as in the numbers, so that both correct p for the same tests
    parts = ["# Long Range Arena: results", summary(every)]
    tasks = tasks_of(groups)
    if any(task in TITLES for task in tasks):
        parts += _benchmark(groups, table3, include_partial)
    for recipe in RECIPES[1:]:
        parts += _recipe(recipe, groups)
    parts += tuning.markdown(every)
    if plots.tradeoffs(groups):
        file = path.with_name(f"{path.name}-tradeoff.png")
        plots.plot_tradeoff(groups, colors, file)
        parts += _tradeoff(groups, file)
    for task in tasks:
        own = [group for group in groups if group.task == task]
        shown = colors if len(colors) <= len(COLORS) else colors_of(labels_of(own))
        parts += _task(own, comparisons)
        trivial = tables.baselines(own)[0]
        title, labels = title_of(task), "; ".join(group.label for group in own)
        slug = re.sub(r"[^\w-]+", "-", task)
        curves = path.with_name(f"{path.name}-curves-{slug}.png")
        times = path.with_name(f"{path.name}-time-{slug}.png")
        plots.plot_curves(own, trivial, shown, curves)
        parts.append(picture(curves, f"Learning curves on {title}: {labels}."))
        if plots.plot_times(own, trivial, shown, times):
            parts += [
                "Validation accuracy against minutes of training on the device named: the sum of the times"
                " per step, without compilation, evaluation and checkpoints. Runs without speed.jsonl are"
                " left out.",
                picture(times, f"Validation accuracy on {title} against minutes: {labels}."),
            ]
    parts += recall.markdown(recalled, path)
    markdown = join([*parts, *_provenance(every, left_out), *_sources(published_rows)])
    found = numbers(tested, published_rows, include_partial=include_partial)
    paper_table = tables.benchmark_table(
        groups,
        published_rows,
        include_partial=include_partial,
        more_tasks=[task for task in tasks if task not in TITLES],
    )
    tex = tables.latex(paper_table, columns, sources, n=not without_n)
    return Report(markdown, found, {"csv": csv_of(found), "tex": tex})


def summary(groups: Sequence[Group]) -> str:
    """Returns a sentence with the numbers of runs, settings and tasks."""
    runs = [run for group in groups for run in group.runs]
    states = collections.Counter(run.state for run in runs)
    finished = states["complete"] + states["partial"] + states["validated"]
    not_tested = f" ({states['validated']} not tested)" if states["validated"] else ""
    diverged = f" and {states['diverged']} diverged" if states["diverged"] else ""
    counts = {"run": len(runs), "setting": len(groups), "task": len(tasks_of(groups))}
    words = ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())
    return f"{finished} finished{not_tested}{diverged} of {words}."


def _benchmark(groups: Sequence[Group], table3: Table, include_partial: bool) -> list[str]:
    parts = [
        "## Comparison with published results",
        "Test accuracy at the step with the best validation accuracy. Ours: mean ± standard deviation over n"
        ' seeds, "n = 4 of 5" if one run diverged, was not finished or is partial. The means of 5'
        " tasks and, with Path-X, of 6 need complete runs of all these tasks. A partial run has fewer steps"
        f" or examples than its recipe, and no mean includes it. {FAILED}, no better than chance, counts"
        f" as {CHANCE:.0f}."
        + ("" if include_partial else " Partial runs are shown with `--include_partial`."),
        table3.markdown(),
    ]
    short = tables.shortfalls([group for group in groups if group.task in TITLES])
    return [*parts, "Incomplete runs:", bullets(short)] if short else parts


def _recipe(recipe: str, groups: Sequence[Group]) -> list[str]:
    """Returns Markdown about what a recipe changes for those tasks and attentions that use it."""
    # Attentions by change and task; empty unless the change is an option of the attention.
    having: dict[str, dict[str, set[str]]] = {}
    for group in groups:
        if group.setting[PRESET] != f"recipe={recipe}":
            continue
        name = str(group.setting["attention.name"])
        paper, own_values = (
            default_setting(group.task, name, preset) for preset in ("", f"recipe={recipe}")
        )
        own = having.setdefault(title_of(group.task), {})
        for key, value in own_values.items():
            if value != paper[key]:
                names = own.setdefault(f"{key} {paper[key]} → {value}", set())
                if is_option(key):
                    names.add(name)
    changes = {
        title: {
            f"{change} ({', '.join(sorted(names))})" if names else change
            for change, names in own.items()
        }
        for title, own in having.items()
    }
    if not having:
        return []
    shared = set.intersection(*changes.values()) if len(changes) > 1 else set()
    named = [("Every task", shared), *((title, own - shared) for title, own in changes.items())]
    return [
        f"## recipe={recipe}",
        f"recipe={recipe} is this repository's own recipe. Its runs have the same validation and test sets"
        " and the same test protocol as those of the paper's recipe, with other values of the config. With a"
        " curriculum they also train on easier examples, which are generated. They compare"
        " attentions with each other, not with the published rows. The following values differ"
        " (paper's recipe → this recipe):",
        bullets(f"{title}: {', '.join(sorted(own))}." for title, own in named if own),
    ]


def _tradeoff(groups: Sequence[Group], file: Path) -> list[str]:
    parts = [
        "## Accuracy and speed",
        "Test accuracy against training examples per second, on a logarithmic axis; a disc's area is the"
        " peak memory. Settings of one budget, timed on one device, share a panel."
        " The bar is the standard deviation over seeds, or the binomial standard error of a single seed.",
        picture(file, "Test accuracy against training examples per second, with peak memory."),
    ]
    unsteady = [
        f"{title_of(group.task)}, {group.label}: {tables.speed_range(group, ' to ')} s per step."
        for group in groups
        if not group.is_steady
    ]
    if unsteady:
        parts += [
            f"Not in the picture, because their times differ by more than a factor of {MAX_RATIO} (over"
            " seeds, or between the quartiles of every seed's laps), as happens on a machine with other load"
            " or with a curriculum of shorter sequences:",
            bullets(unsteady),
        ]
    return parts


def _task(groups: Sequence[Group], comparisons: Sequence[Comparison]) -> list[str]:
    task = groups[0].task
    parts = [f"## {title_of(task)}"]
    if task not in TITLES:
        parts.append(
            "Not a task of the published tables: these numbers cannot be compared with published ones."
        )
    parts += [
        tables.task_groups_table(groups).markdown(),
        "Seconds per step: the median over laps, then over seeds, and in parentheses the range over seeds"
        " or the quartiles over laps of the steadiest seed, whichever is wider. Examples per second are the"
        " batch over that median.",
    ]
    if not all(group.is_steady for group in groups):
        parts.append(
            f"† Over seeds, or within every seed, the times differ by more than a factor of {MAX_RATIO}: the"
            " machine had other load, or a curriculum has shorter sequences (`data.curriculum`). This speed"
            " cannot be compared with others."
        )
    trivial, counted = tables.baselines(groups)
    if trivial:
        where = (
            "computed on this test set"
            if counted
            else "known for the task, not computed on the test set of every run"
        )
        parts.append(f"Trivial predictors: {where}.")
    for grid in grids(groups):
        first = next(iter(grid.cells.values()))
        partial = " Partial runs." if first.state == "partial" else ""
        parts += [
            f"{grid.attention} attention over two of its options, {first.progress} steps."
            f" Mean ± standard deviation of the test accuracy, %.{partial}",
            tables.grid_table(grid).markdown(),
        ]
    if own := [one for one in comparisons if one.task == task]:
        tested = sum(not math.isnan(one.p) for one in comparisons)
        parts += [
            "Differences between settings of one budget. Over two or more shared seeds they are paired:"
            " Student's t-test, with p corrected by Holm's method for all tests of this report"
            f" ({tested or 'none'}). Otherwise, the table has the difference between the means with its"
            " binomial standard error, which does not include the spread over seeds.",
            tables.comparisons_table(own).markdown(),
        ]
    return [
        *parts,
        "Every run, with the binomial standard error of its test accuracy:",
        tables.runs_table(groups).markdown(),
    ]


def _provenance(groups: Sequence[Group], left_out: Sequence[str]) -> list[str]:
    rows = [
        {
            "run": run.name,
            "task": title_of(run.task),
            "attention": group.label,
            "seed": str(run.seed),
            "device": run.device or NOTHING,
            "data": run.data_source or NOTHING,
            "config, SHA-256": run.config_sha256[:12] or NOTHING,
            "data, SHA-256": run.data_sha256[:12] or NOTHING,
        }
        for group in groups
        for run in group.runs
    ]
    commands = [command(run, group) for group in groups for run in group.runs]
    parts = [
        "## How it was measured",
        "A run trains, selects the step by validation accuracy and reads the test set once."
        " Speed is measured in training, on the device named; memory is the peak of the device or, on a CPU,"
        " of the process.",
        Table.from_rows({"": rows}).markdown(),
        "Versions:",
        bullets(version_sentences(run for group in groups for run in group.runs)),
        "Commands (other differences from the config file do not change the numbers, and are in the run's"
        " config.json):",
        "\n".join(["```", *commands, "```"]),
    ]
    return [*parts, "Left out:", bullets(left_out)] if left_out else parts


def command(run: Run, group: Group) -> str:
    """Returns the command that reproduces a run: `--config`, and flags for the values that differ from it.

    Code of other packages is not executed to find differences: for a config file that is not in `configs/`
    and for an attention of another package, the flags are those that the run recorded. Older runs did not
    record them, so the command refers to the config.json of the run. If a run did not record `--config`
    either, it is derived from the task and the values.
    """
    config, options = run.config_argument, dict[str, Hashable]()
    if not config:
        file, own = config_file(run.task)
        options = {key: v for key, v in differences(group.setting).items() if is_option(key)}
        argument = [str(group.setting["attention.name"]), *own, str(group.setting[PRESET])]
        argument += [f"{key.partition('.')[2]}={value}" for key, value in options.items()]
        config = f"configs/{file}.py:{','.join(filter(None, argument))}"
    path, _, given = config.partition(":")
    defaults = config_values(Path(path).stem, given) if Path(path).parent == Path("configs") else {}
    if not run.config_argument:  # the config file may not support the attention
        defaults = defaults or default_setting(run.task, str(group.setting["attention.name"]))
    folder = run.name.replace("/", "-")  # a new folder below the current one
    end = f"--config.train.seed={run.seed} {shlex.quote(f'--workdir={folder}')}"
    if run.state == "validated":
        end = f"--notest {end}"
    if defaults.get("data.task") == run.task:
        changes = {
            key: value
            for key, value in sorted(group.setting.items())
            if key not in {*NEVER_DIFFERENCES, *options} and value != defaults.get(key)
        }
    elif run.overrides is not None:
        changes = affecting_results(run.overrides)
    else:
        remark = f"with the values of {run.name}/config.json"
        if not run.config_argument:
            config, remark = "FILE", f"FILE: the config file of {run.task}, {remark}"
        return f"python run_lra.py {shlex.quote(f'--config={config}')} {end}  # {remark}"
    data = run.config["data"]
    flags = ["--config.data.dir=FOLDER"] if data.get("dir") else []
    if (source := data.get("source", "auto")) != "auto":
        flags.append(f"--config.data.source={source}")
    flags += [shlex.quote(f"--config.{key}={value}") for key, value in changes.items()]
    return " ".join(["python run_lra.py", shlex.quote(f"--config={config}"), *flags, end])


def _sources(published_rows: Mapping[Source, object]) -> list[str]:
    sources = [
        (f"[{source.title}]({source.url})" if source.url else source.title)
        + (f": {source.remark}" if source.remark else "")
        for source in published_rows
    ]
    tasks = (
        "[The tasks and their measures](https://arxiv.org/abs/2011.04006): Tay et al. 2021. The mean of 5 is"
        f" over {', '.join(COLUMNS.values())}; that of 6 also includes {TITLES[PATH_X]}."
    )
    return ["## Sources", bullets([*sources, tasks])]
