"""Writes the numbers of `results/` into the README and the docs: `python -m benchmarks.readme`.

The text between `<!-- numbers: NAME -->` and `<!-- end -->` is replaced by what `BLOCKS[NAME]` returns.
"""

import functools
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import ablation, approximation, budget, gpu_budget, language, plans, tasks
from benchmarks import report as attention
from benchmarks.efficiency import tables
from command import run_to_end
from lra import report
from lra.report import recall, tuning
from lra.report.comparisons import compare
from lra.report.groups import tasks_of
from lra.report.published import title_of
from lra.report.tables import format_p
from nystromformer_jax.durable import write_bytes
from reporting.tables import NOTHING, Table, markdown_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in ("method", "performance", "results", "scaling", "when")
    ),
)
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def _groups() -> list[Any]:
    groups, _ = report.read_groups([RESULTS])
    return groups


def _table3() -> str:
    return report.table3(_groups(), include_partial=True)


def _table3_of_paper() -> str:
    """Returns the header of Table 3, the sections of our recipes that have a number, and the paper's."""
    header, *sections = re.split(r"^(?=\| \*\*)", _table3(), flags=re.MULTILINE)
    ours_or_paper = re.compile(r"\| \*\*(This code, (?!other)|Xiong)")
    return header + "".join(
        x for x in sections if ours_or_paper.match(x) and re.search(r"\| \d", x)
    )


def _control(recipe: str) -> str:
    """Returns the accuracy that attention adds to the recipe, by task."""
    rows = []
    tests = {
        (one.task, frozenset((one.first, one.second))): one.p_holm
        for one in compare(tuning.select_tested(_groups()))
    }
    for task in tasks_of(_groups()):
        own = {group.label: group for group in _groups() if group.task == task}
        labels = [f"{core}, recipe={recipe}" for core in ("nystrom-32", "none")]
        pair = [own[label] for label in labels if label in own]
        if len(pair) < 2:
            continue
        if not (compared := compare(pair)):  # one of them is partial or unfinished
            continue
        [found] = compared
        size = found.half_width if found.paired else found.error
        kind = "95 % t interval" if found.paired else "binomial standard error"
        seeds = [found.seeds or group.accuracies for group in pair]
        with_seeds, without_seeds = (", ".join(map(str, numbers)) for numbers in seeds)
        difference = f"{found.difference:+.2f}".replace("-", "−")
        cells = {
            "task": title_of(task),
            "seeds with": with_seeds,
            "seeds without": without_seeds,
            "with Nyström attention − without, points": difference,
            "error": NOTHING if math.isnan(size) else f"± {size:.2f}, {kind}",
            "p": format_p(found.p),
            "p, Holm": format_p(tests.get((task, frozenset(labels)), math.nan)),
        }
        rows.append(cells)
    return Table.from_rows({"": rows}).markdown()


def _averages() -> str:
    """Returns the errors of models with moving averages before queries and keys, and of one without."""
    files = {
        "recipe=open_small": "open-small",
        "with averages": "with",
        "without averages": "without",
    }
    trained = {
        name: _json(f"averages/{file}")["trained"]["listops"] for name, file in files.items()
    }
    return approximation.trained_markdown({"trained": trained})


def _without_convolution(table: str) -> str:
    return "".join(line for line in table.splitlines(keepends=True) if "convolution" not in line)


def _by_iteration(numbers: Any) -> str:
    """Returns a table of residuals and errors by iteration, for a trained model and random inputs."""
    by_input = {
        name: numbers["curves"][name]["by_iteration"]["exact"] for name in ("trained", "random")
    }
    columns = ["iterations"]
    for inputs in ("trained model", "random inputs"):
        columns += [f"residual, {inputs}", "error of the output"]
    rows = []
    for iterations in (2, 4, 6, 8, 10, 12, 16, 20):
        cells = [
            f"{by_input[name][iterations][kind]['median']:.{digits}f}"
            for name in by_input
            for kind, digits in (("residual", 4), ("output_error", 3))
        ]
        rows.append([str(iterations), *cells])
    return markdown_table(columns, rows)


BLOCKS: Mapping[str, Callable[[], str]] = {
    "ablation": lambda: ablation.markdown(_json("ablation")["rows"]),
    "ablation-open": lambda: ablation.markdown(_json("ablation-open")["rows"]),
    "approximation": lambda: approximation.markdown(_json("approximation")),
    "approximation-short": lambda: approximation.headline(_json("approximation")),
    "approximation-trained": lambda: approximation.trained_markdown(_json("approximation")),
    "approximation-averages": _averages,
    "attention": lambda: attention.headline(_json("benchmarks/cpu")),
    "control": lambda: _control("fast"),
    "control-open": lambda: _control("open_small"),
    "efficiency": lambda: tables.headline(_json("efficiency/cpu")),
    "listops-short": lambda: report.task_table(
        _groups(),
        "listops-short",
        "attention",
        "seeds",
        "test accuracy, %",
        "binomial error",
        "95 % interval",
    ),
    "mqar": lambda: recall.table(recall.complete(_groups())).markdown(),
    "speed": lambda: _without_convolution(attention.headline(_json("benchmarks/cpu"))),
    "table3": _table3,
    "table3-paper": _table3_of_paper,
    "language-cost": lambda: language.markdown(_json("language/cost")),
    "language-v5e": lambda: language.markdown(_json("language/v5e")),
    "plans": lambda: plans.markdown(_json("plans/table")),
    "plans-open": lambda: plans.cost_markdown(_json("plans/open")),
    "scaling": lambda: plans.scaling_markdown(_json("plans/scaling")),
    "budget": lambda: budget.markdown(_json("budget/tpu")),
    "gpu-budget": lambda: gpu_budget.markdown(_json("budget/gpu")),
    "iterations": lambda: _by_iteration(_json("figures/listops-nystrom")),
    "parts": lambda: tasks.parts_markdown(
        {
            f"{batch}, {pages}": _json(f"tasks/{file}")
            for batch, pages, file in (
                ("whole", "defaults", "whole"),
                ("parts", "defaults", "parts"),
                ("whole", "huge pages", "whole-huge-pages"),
                ("parts", "huge pages", "parts-huge-pages"),
            )
        }
    ),
    "tasks": lambda: tasks.markdown(_json("tasks/cpu")),
}


def filled(text: str) -> str:
    """Returns the text with new numbers in every block.

    Raises:
      KeyError: `BLOCKS` has no block of that name.
    """
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[3], text)


def main() -> int:
    """Rewrites the pages and returns the exit code."""
    return run_to_end("benchmarks.readme", _rewrite)


def _rewrite() -> None:
    texts = {page: filled(page.read_text(encoding="utf-8")).encode() for page in PAGES}
    for page, text in texts.items():
        write_bytes(page, text)


if __name__ == "__main__":
    sys.exit(main())
