"""What the report says, in order: sections of paragraphs, tables, pictures and listings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from harness.environments import version_sentences
from harness.tables import Table
from lra.report import tables
from lra.report.comparisons import Comparison, compare, grids
from lra.report.groups import Group, tasks_of
from lra.report.labels import differences
from lra.report.published import CHANCE, COLUMNS, FAILED, PATH_X, TABLE, TITLES
from lra.report.results import Run
from lra.report.standard import config_file, quirks_of


class Picture(NamedTuple):
    """A PNG beside the report, and what it shows in words."""

    path: Path
    alternative: str


class Points(NamedTuple):
    """Sentences, one below the other."""

    sentences: Sequence[str]


class Listing(NamedTuple):
    """Lines as they are, behind a title; `folded` ones are only on the page that can fold them."""

    title: str
    lines: Sequence[str]
    folded: bool = False


class Links(NamedTuple):
    """Titles, addresses and remarks."""

    items: Sequence[tuple[str, str, str]]


Block = str | Table | Picture | Points | Listing | Links


class Section(NamedTuple):
    """A heading and what stands below it; a part of the benchmark's pages, or of a task's."""

    anchor: str
    title: str
    blocks: Sequence[Block]


def make_sections(
    groups: Sequence[Group], left_out: Sequence[str], pictures: Mapping[str, Path]
) -> list[Section]:
    """The report on `groups`.

    Args:
      groups: all of them, in their order.
      left_out: a sentence for each run that is not among them.
      pictures: paths by task, and "tradeoff".
    """
    comparisons = compare(groups)
    sections = []
    tasks = tasks_of(groups)
    if any(task in TITLES for task in tasks):
        sections.append(_benchmark(groups))
    if "tradeoff" in pictures:
        sections.append(_tradeoff(pictures["tradeoff"]))
    for task in tasks:
        own = [group for group in groups if group.task == task]
        differences = [one for one in comparisons if one.task == task]
        sections.append(_task(task, own, differences, comparisons, pictures[task]))
    return [*sections, _provenance(groups, left_out), _sources()]


def markdown(sections: Sequence[Section]) -> str:
    """The report as a page of Markdown; pictures are named by their files."""
    parts = ["# Long Range Arena: results"]
    for section in sections:
        parts.append(f"## {section.title}")
        for block in section.blocks:
            match block:
                case str():
                    parts.append(block)
                case Table():
                    parts.append(block.markdown().rstrip("\n"))
                case Picture(path, alternative):
                    parts.append(f"![{alternative}]({quote(path.name)})")
                case Points(sentences):
                    parts.append("\n".join(f"* {sentence}" for sentence in sentences))
                case Listing(title, lines, folded) if not folded:
                    parts.append("\n".join([f"{title}:", "", "```", *lines, "```"]))
                case Links(items):
                    parts.append(
                        "\n".join(f"* [{title}]({url}): {remark}" for title, url, remark in items)
                    )
    return "\n\n".join(parts) + "\n"


def _benchmark(groups: Sequence[Group]) -> Section:
    blocks: list[Block] = [
        "Test accuracy at the step that validation chose. Ours: mean ± standard deviation over n seeds,"
        ' "n = 4 of 5" where one diverged, was not finished or is partial. The means of 5 and,'
        " with Path-X, of 6 need all of their tasks, whole: a partial run saw fewer steps or examples than"
        f" the benchmark has, and enters no mean. {FAILED}, no better than chance, counts as {CHANCE:.0f}.",
        tables.benchmark_table(groups),
    ]
    short = tables.shortfalls([group for group in groups if group.task in TITLES])
    if short:
        blocks += ["Runs that are not whole:", Points(short)]
    return Section("benchmark", "Beside published results", blocks)


def _tradeoff(path: Path) -> Section:
    words = (
        "Test accuracy against training examples a second, on a logarithmic axis; a disc's area is the"
        " peak memory. Settings of one budget, timed on one device, share a panel."
        " The bar is the standard deviation over seeds, or the binomial standard error of one."
    )
    alternative = "Test accuracy against training examples a second, with peak memory."
    return Section("speed", "Accuracy and speed", [words, Picture(path, alternative)])


def _task(
    task: str,
    groups: Sequence[Group],
    comparisons: Sequence[Comparison],
    everywhere: Sequence[Comparison],
    picture: Path,
) -> Section:
    title = TITLES.get(task, task)
    blocks: list[Block] = []
    if task not in TITLES:
        blocks.append(
            "Not a task of the published tables: these numbers stand beside none of theirs."
        )
    blocks.append(tables.task_groups_table(groups))
    trivial, counted = tables.baselines(groups)
    if trivial:
        where = "counted on this test set" if counted else "known of the task, not of this test set"
        blocks.append(f"Trivial predictors: {where}.")
    for grid in grids(groups):
        first = next(iter(grid.cells.values()))
        partial = " Partial runs." if first.state == "partial" else ""
        blocks += [
            f"{grid.attention} attention over two of its options, {first.progress} steps."
            f" Mean ± standard deviation of the test accuracy, %.{partial}",
            tables.grid_table(grid),
        ]
    if comparisons:
        tested = sum(not math.isnan(one.p) for one in everywhere)
        blocks += [
            "Differences between settings of one budget. Over two or more shared seeds they are paired:"
            " Student's t, its p corrected by Holm for all tests of this report"
            f" ({tested or 'none'}). Otherwise the difference of the means with its binomial standard"
            " error, which knows nothing of seeds.",
            tables.comparisons_table(comparisons),
        ]
    labels = "; ".join(group.label for group in groups)
    blocks += [
        "Every run, with the binomial standard error of its test accuracy:",
        tables.runs_table(groups),
        Picture(picture, f"Learning curves on {title}: {labels}."),
    ]
    return Section(f"task-{task}", title, blocks)


def _provenance(groups: Sequence[Group], left_out: Sequence[str]) -> Section:
    runs = [run for group in groups for run in group.runs]
    rows = [
        [
            run.name,
            TITLES.get(run.task, run.task),
            group.label,
            str(run.seed),
            run.device or "–",
            run.config_sha256[:12] or "–",
            run.data_sha256[:12] or "–",
        ]
        for group in groups
        for run in group.runs
    ]
    columns = ["run", "task", "attention", "seed", "device", "config, SHA-256", "data, SHA-256"]
    blocks: list[Block] = [
        "A run's command trains, chooses the step by validation accuracy and reads the test set once."
        " Speed is the training's, on the device named; memory is the device's peak, on a CPU the"
        " process's.",
        Table(columns, [("", rows)]),
        "Versions:",
        Points(version_sentences((run.name, run.versions) for run in runs)),
        Listing(
            "Commands (what else differs from the config file changes no number, and is in the run's"
            " config.json)",
            [command(run, group) for group in groups for run in group.runs],
        ),
        *(
            Listing(
                f"Setting of {group.label} on {TITLES.get(group.task, group.task)}", lines, True
            )
            for group in groups
            for lines in [[f"{key} = {value}" for key, value in sorted(group.setting.items())]]
        ),
    ]
    if left_out:
        blocks += ["Left out:", Points(left_out)]
    return Section("provenance", "How it was measured", blocks)


def command(run: Run, group: Group) -> str:
    """The command of a run: its config file, and what differs from it and may change its numbers."""
    file, behind = config_file(run.task)
    argument = [str(run.attention["name"]), *behind]
    if quirks := quirks_of(group.setting):
        argument.append(f"quirks={quirks}")
    data = run.config["data"]
    flags = ["--config.data.dir=FOLDER"] if data.get("dir") else []
    if (source := data.get("source", "auto")) != "auto":
        flags.append(f"--config.data.source={source}")
    for key, value in differences(group.setting).items():
        section, _, option = key.partition(".")
        if section == "attention":
            argument.append(f"{option}={value}")
        else:
            flags.append(f"--config.{key}={value}")
    flags += [f"--config.train.seed={run.seed}", f"--workdir={run.name}"]
    return f"python run_lra.py --config=configs/{file}.py:{','.join(argument)} {' '.join(flags)}"


def _sources() -> Section:
    items = [(source.title, source.url, source.remark) for source in TABLE]
    columns = ", ".join(COLUMNS.values())
    tasks = (
        "The tasks and their measures",
        "https://arxiv.org/abs/2011.04006",
        f"Tay et al. 2021. The mean of 5 is over {columns}; that of 6 has {TITLES[PATH_X]}, too.",
    )
    return Section("sources", "Sources", [Links([*items, tasks])])
