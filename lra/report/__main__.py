"""Writes a report on runs of the benchmark: `python -m lra.report runs --out results/report`.

    python -m lra.report results/listops-nystrom-seed0 --out results/listops-nystrom-seed0/report
    python -m lra.report results runs/ablation --out results/report

Each folder is a run folder, or contains run folders at any depth. The report consists of `<out>.md`, a
self-contained `<out>.html`, `<out>.json` with all numbers of the tables, and figures:
`<out>-curves-TASK.png`, `<out>-time-TASK.png` if `speed.jsonl` has the time per step, and
`<out>-tradeoff.png` if at least two settings of a task were timed.
"""

import sys
from collections.abc import Sequence

from lra.report.groups import read_groups
from lra.report.page import make
from reporting import writer


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report, prints it as Markdown and returns the exit code."""
    return writer.main("lra.report", __doc__, read_groups, make, arguments, html=True)


if __name__ == "__main__":
    sys.exit(main())
