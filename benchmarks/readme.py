"""Puts the numbers of `results/` into README, between its marks: `python -m benchmarks.readme`.

Behind `<!-- numbers: NAME -->`, up to `<!-- end -->`, stands what `BLOCKS[NAME]` makes of the JSON there.
"""

import functools
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report as attention
from benchmarks import tasks
from lra import report
from lra.efficiency import tables

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
BLOCK = re.compile(r"(<!-- numbers: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _json(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


@functools.cache
def _groups() -> list[Any]:
    groups, _ = report.read_groups([RESULTS])
    return groups


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
    "tasks": lambda: tasks.markdown(_json("tasks/cpu")),
}


def filled(text: str) -> str:
    """The text with every marked block made anew.

    Raises:
      KeyError: A mark that no block is known for.
    """
    return BLOCK.sub(lambda found: found[1] + BLOCKS[found[2]]() + found[3], text)


def main() -> int:
    """Rewrites README.md; returns the exit code."""
    readme = ROOT / "README.md"
    try:
        text = filled(readme.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        print(f"benchmarks.readme: {error.filename} is not there yet.", file=sys.stderr)
        return 2
    readme.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
