"""Every test that docs/reliability.md names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_of_the_fault_table_names_a_test_that_exists():
    page = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    section = page.partition("## Faults")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 20
    for row in rows:
        names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert names, f"no test holds this row: {row}"
        for path, name in names:
            source = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^def {name}\(", source, re.MULTILINE), f"{path}::{name}"
