"""The code in README and docs runs, and README's two commands are where CI looks for them."""

import re
from pathlib import Path

import jax
import pytest

from benchmarks import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


BLOCKS = blocks_of(ROOT / "README.md")
PAGES = sorted((ROOT / "docs").glob("*.md"))


def test_there_is_code_to_run():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block):
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    if "mesh" in names:
        assert names["output"].shape == names["query"].shape
        assert len(names["output"].sharding.device_set) == jax.device_count()
    elif "exact" in names:
        assert names["output"].shape == names["exact"].shape == names["query"].shape
        assert names["y"].shape == names["x"].shape
    else:
        assert names["logits"].shape == (*names["inputs"].shape, 1000)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_of_the_docs_run(page):
    for block in blocks_of(page):
        exec(compile(block, page.name, "exec"), {})


@pytest.mark.parametrize("marker", ["main-job", "tests"])
def test_the_commands_that_ci_runs_are_one_line_each(marker):
    block = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1].count("\n") == 1
    assert block[1].startswith("python3 -m venv .venv && .venv/bin/pip install")


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.name)
def test_numbers_come_from_the_results(page):
    """After new results: python -m benchmarks.readme."""
    assert readme.filled(page.read_text()) == page.read_text()


def test_every_kind_of_numbers_is_shown():
    shown = [found[2] for page in readme.PAGES for found in readme.BLOCK.finditer(page.read_text())]
    assert sorted(shown) == sorted(readme.BLOCKS)
