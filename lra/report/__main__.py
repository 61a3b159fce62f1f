"""Writes a report on runs of the benchmark: `python -m lra.report runs --out results/report`.

    python -m lra.report results/listops-nystrom-seed0 --out results/listops-nystrom-seed0/report
    python -m lra.report results runs/ablation --out results/report
    python -m lra.report runs --published=rows.csv --out results/report

Each folder is a run folder, or contains run folders at any depth. The report consists of:

<out>.md, .html      the report; the HTML is self-contained
<out>.csv            one line per setting: accuracies, errors, speed, memory
<out>.runs.csv       one line per run: results, command, config, hashes, versions
<out>.tex            Table 3 in LaTeX, for the package booktabs, with your own tasks
<out>-bars.png, <out>-curves-TASK.png, and <out>-recall.png for complete runs of MQAR

A file of --published adds rows to Table 3. It is a CSV file with a header, or a JSON list of objects:

model, source        names of the row and of its section; required
listops, text, retrieval, image, pathfinder32, pathfinder128
                     test accuracies in percent; at least one. ✗ in pathfinder128 means no better than chance
mean_of_5            as printed in the source; by default computed if the row has the five tasks
url, remark          link to the source, and what differs there
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from lra.report.groups import read
from lra.report.page import make
from reporting import writer

FLAGS: Mapping[str, Mapping[str, Any]] = {
    "published": {
        "type": writer.path_argument,
        "help": "CSV or JSON file with other rows of Table 3",
    },
    "include_partial": {
        "action": "store_true",
        "help": "show partial runs in Table 3: set to fewer steps or examples than their recipe",
    },
    "columns": {"nargs": "+", "default": (), "help": "columns of the LaTeX table; default: all"},
    "sources": {
        "nargs": "*",
        "help": "beginnings of the titles of published rows of the LaTeX table; default: all",
    },
    "without_n": {
        "action": "store_true",
        "help": "leave the numbers of seeds out of the LaTeX table",
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report, prints it as Markdown and returns the exit code."""
    return writer.main("lra.report", __doc__, read, make, arguments, flags=FLAGS)


if __name__ == "__main__":
    sys.exit(main())
