"""README's code runs, its two commands are where CI looks for them, and numbers are those of the results."""

import json
import re
from pathlib import Path

import jax
import pytest

from benchmarks import readme
from language.report import page as report_page
from language.report.groups import group_runs
from language.report.results import find_runs

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


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


@pytest.mark.parametrize("marker", ["main-job", "tests"])
def test_the_commands_that_ci_runs_are_one_line_each(marker):
    block = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1].count("\n") == 1
    assert block[1].startswith("python3 -m venv .venv && .venv/bin/pip install")


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.name)
def test_numbers_come_from_the_results(page):
    """After new results: python -m benchmarks.readme."""
    assert readme.filled(page.read_text()) == page.read_text()


def test_the_language_models_results_are_the_page_of_their_report(results):
    """After new ones: python -m language.report results/language --out docs/language."""
    groups, left_out = group_runs(find_runs([results / "language"]))
    assert (DOCS / "language.md").read_text() == report_page.markdown(
        groups, left_out, "language-pretraining.png"
    )
    assert json.loads((DOCS / "language.json").read_text()) == report_page.numbers(groups)


def test_every_kind_of_numbers_is_shown():
    shown = [found[2] for page in readme.PAGES for found in readme.BLOCK.finditer(page.read_text())]
    assert sorted(shown) == sorted(readme.BLOCKS)
