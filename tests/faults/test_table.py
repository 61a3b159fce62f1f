"""Every fault in docs/reliability.md has a test."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_of_the_fault_table_names_a_test():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    section = page.partition("## Faults")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 15
    for row in rows:
        assert re.search(r"`tests/[\w/]+\.py::test_\w+`", row), f"no test holds this row: {row}"
