"""Writes the language model's report on runs: `python -m language.report runs --out results/language`.

Each folder is a run's, or contains finished runs of pretraining, and of fine-tuning on GLUE or IMDb, at any
depth; other runs are ignored. Writes `<out>.md`, `<out>.json` with every number, and `<out>-pretraining.png`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from language.report.groups import read_groups
from language.report.page import make
from reporting import writer


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report and prints its Markdown; returns the exit code."""
    out = Path("results/language")
    return writer.main("language.report", __doc__, read_groups, make, arguments, default_out=out)


if __name__ == "__main__":
    sys.exit(main())
