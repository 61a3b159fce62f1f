"""Writes the language model's report on runs: `python -m language.report runs --out results/language`.

Each folder is a run folder, or contains runs of pretraining, and of fine-tuning on GLUE or IMDb, at any
depth. Runs that diverged or are not finished are named and left out; runs of other programs are ignored.
Writes `<out>.md`, the same as `<out>.html`, `<out>.runs.csv` with a line per run, and
`<out>-pretraining.png`.
"""

import sys
from collections.abc import Sequence

from language.report.page import make
from language.report.tables import read
from reporting import writer


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the report and prints its Markdown; returns the exit code."""
    return writer.main("language.report", __doc__, read, make, arguments)


if __name__ == "__main__":
    sys.exit(main())
