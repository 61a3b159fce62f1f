"""Pages that have a source are up to date, and pages fit a screen."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WIDTH = 80  # characters of code that a page shows without scrolling
COLUMNS = 9  # of a table


def name_of(page):
    return page.stem


@pytest.fixture
def generate():
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of ml-collections
def test_every_key_of_a_config_is_documented(generate):
    """To update: python docs/generate.py."""
    assert (DOCS / "config.md").read_text() == generate.config_page()


def test_the_notebook_is_the_tutorial(generate):
    """To update: python docs/generate.py."""
    text = generate.NOTEBOOK.read_text()
    assert text == generate.notebook((DOCS / "tutorial.md").read_text())
    first, *rest = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
    assert any("pip install" in line for line in first["source"])
    blocks = BLOCK.findall((DOCS / "tutorial.md").read_text())
    expected = [code.strip() for kind, code in blocks if kind == "python"]
    assert ["".join(cell["source"]) for cell in rest] == expected


def test_pictures_of_the_tutorial_are_small():
    """To update: python docs/generate.py --pictures."""
    pictures = re.findall(r"\((tutorial-\w+\.png)\)", (DOCS / "tutorial.md").read_text())
    assert len(pictures) == 2
    assert all((DOCS / picture).stat().st_size <= 60_000 for picture in pictures)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_is_at_most_80_wide(page):
    blocks = BLOCK.findall(page.read_text())
    code = [text for kind, text in blocks if not kind.startswith("{")]  # not directives
    lines = "".join(code).splitlines()
    assert not [line for line in lines if len(line) > WIDTH]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_have_at_most_nine_columns(page):
    rules = re.findall(r"^\|(?: ?:?-+:? ?\|)+$", page.read_text(), re.MULTILINE)
    assert not [rule for rule in rules if rule.count("|") - 1 > COLUMNS]
