"""README has the two commands of CI, and agrees with the stored results."""

import re
from pathlib import Path

import pytest
import yaml

import nystromformer_jax
from benchmarks import readme

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("marker", ["main-job", "tests"])
def test_commands_that_ci_runs_are_one_line_each(marker):
    block = re.search(rf"<!-- {marker} -->\n```bash\n(.*?)```", README, re.DOTALL)
    assert block is not None
    assert block[1].count("\n") == 1
    assert block[1].startswith("python3 -m venv .venv && . .venv/bin/activate && pip install -e ")


def test_citation_has_the_version_of_the_package():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == nystromformer_jax.__version__


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("file", readme.PAGES, ids=lambda file: file.name)
def test_numbers_equal_the_stored_results(file):
    """To update: python -m benchmarks.readme."""
    assert readme.filled(file.read_text()) == file.read_text()


def test_every_kind_of_number_is_shown():
    shown = {found[2] for page in readme.PAGES for found in readme.BLOCK.finditer(page.read_text())}
    assert shown == set(readme.BLOCKS)
