"""Writes a report on runs of the benchmark: `python -m lra.report runs --out results/report`.

    python -m lra.report results/listops-nystrom-seed0 --out results/listops-nystrom-seed0/report
    python -m lra.report results runs/ablation --out results/report

Each folder is a run folder, or contains run folders at any depth. The report consists of:

<out>.md, .html      the report; the HTML is self-contained
<out>.csv            one line per setting: accuracies, errors, speed, memory
<out>.runs.csv       one line per run: results, command, config, hashes, versions
<out>.tex            Table 3 in LaTeX, for the package booktabs, with your own tasks
<out>-bars.png, <out>-curves-TASK.png, and <out>-recall.png for complete runs of MQAR
"""

import sys
from collections.abc import Sequence

from lra.report.groups import read
from lra.report.page import make
from reporting import writer

FLAGS = {
    "include_partial": {
        "action": "store_true",
        "help": "show partial runs in Table 3: set to fewer steps or examples than their recipe",
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report, prints it as Markdown and returns the exit code."""
    return writer.main("lra.report", __doc__, read, make, arguments, flags=FLAGS)


if __name__ == "__main__":
    sys.exit(main())
