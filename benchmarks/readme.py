"""Puts the numbers of `results/` into README and docs, between marks: `python -m benchmarks.readme`.

Behind `<!-- numbers: NAME -->`, up to `<!-- end -->`, stands what `BLOCKS[NAME]` makes of the JSON there.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import budget, language, plans, tasks
from benchmarks import report as attention
from language.report import gains
from language.report import groups as language_groups
from language.report import results as language_results
from language.report import tables as language_tables
from lra import report
from lra.efficiency import tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "method.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "scaling.md",
)
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def _groups() -> list[Any]:
    groups, _ = report.read_groups([RESULTS])
    return groups


@functools.cache
def _language_groups() -> list[Any]:
    runs = language_results.find_runs([RESULTS / "language"])
    return language_groups.group_runs(runs)[0]


def _by_iteration(numbers: Any) -> str:
    """What iterations of the pseudoinverse give on a trained model's kernels, and on random ones."""
    of = {name: numbers["curves"][name]["by_iteration"]["exact"] for name in ("trained", "random")}
    rows = [
        "| iterations | residual, trained model | error of the output | residual, random inputs | error |",
        "|---:|---:|---:|---:|---:|",
    ]
    for iterations in (2, 4, 6, 8, 10, 12, 16, 20):
        cells = [
            f"{of[name][iterations][kind]['median']:.{digits}f}"
            for name in of
            for kind, digits in (("residual", 4), ("output_error", 3))
        ]
        rows.append(f"| {iterations} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


BLOCKS: Mapping[str, Callable[[], str]] = {
    "attention": lambda: attention.headline(_json("benchmarks/cpu")),
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
    "table3": lambda: report.table3(_groups()),
    "pretraining": lambda: language_tables.pretraining_table(
        [group for group in _language_groups() if not group.task]
    ).markdown(),
    "fine-tuning": lambda: language_tables.table_2(_language_groups()).markdown(),
    "gains": lambda: gains.table(gains.find_gains(_language_groups())).markdown(),
    "language-cost": lambda: language.markdown(_json("language/cost")),
    "language-v5e": lambda: language.markdown(_json("language/v5e")),
    "plans": lambda: plans.markdown(_json("plans/table")),
    "scaling": lambda: plans.scaling_markdown(_json("plans/scaling")),
    "budget": lambda: budget.markdown(_json("budget/tpu")),
    "iterations": lambda: _by_iteration(_json("figures/listops-nystrom")),
    "tasks": lambda: tasks.markdown(_json("tasks/cpu")),
}


def filled(text: str) -> str:
    """The text with every marked block made anew.

    Raises:
      KeyError: A mark that no block is known for.
    """
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[3], text)


def main() -> int:
    """Rewrites the pages; returns the exit code."""
    try:
        texts = {page: filled(page.read_text(encoding="utf-8")) for page in PAGES}
    except FileNotFoundError as error:
        print(f"benchmarks.readme: {error.filename} is not there yet.", file=sys.stderr)
        return 2
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
