"""The page is whole HTML that needs nothing beside it, whatever the runs are called."""

import base64
import re
from html.parser import HTMLParser

import pytest

from harness.tables import Table
from lra.report.page import page
from lra.report.sections import Links, Listing, Picture, Points, Section
from lra.report.tables import OURS

VOID = {"meta", "img", "br", "hr", "link", "input"}
EVIL = "<script>alert('1')</script> & \"quoted\""


class Checker(HTMLParser):
    """Keeps the open elements, and everything that a page could load."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], [], []
        self.loads, self.alternatives, self.anchors, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        values = dict(attributes)
        if tag not in VOID:
            self.open.append(tag)
        if "src" in values:
            self.loads.append(values["src"])
        if tag == "img":
            self.alternatives.append(values["alt"])
        if values.get("href", "").startswith("#"):
            self.anchors.append(values["href"][1:])
        if "id" in values:
            self.ids.append(values["id"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check(content):
    checker = Checker()
    checker.feed(content)
    checker.close()
    assert checker.open == []
    return checker


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG not really")
    return path


@pytest.fixture
def sections(picture):
    rows = [[EVIL, "37.15", "1 × cpu"], ["b", "not run", EVIL]]
    table = Table([EVIL, "accuracy", "device"], [(OURS, rows), (EVIL, rows)])
    blocks = [EVIL, table, Picture(picture, EVIL), Points([EVIL]), Listing(EVIL, [EVIL])]
    links = Links([(EVIL, "https://example.org/?a=1&b=2", EVIL)])
    return [Section("first", EVIL, blocks), Section("second", "Sources", [links])]


def test_the_page_is_balanced_and_its_contents_lead_somewhere(sections):
    checker = check(page(sections, EVIL))
    assert page(sections, "").startswith("<!DOCTYPE html>")
    assert checker.anchors == checker.ids == ["first", "second"]
    assert {"html", "head", "title", "nav", "main", "table", "figure"} <= set(checker.tags)


def test_names_are_text_and_never_markup(sections):
    checker = check(page(sections, EVIL))
    assert "script" not in checker.tags
    assert checker.alternatives == [EVIL]
    assert "".join(checker.text).count(EVIL.replace("-", "‑")) >= 10


def test_the_page_loads_nothing(sections, picture):
    content = page(sections, "")
    checker = check(content)
    data = base64.b64encode(picture.read_bytes()).decode()
    assert checker.loads == [f"data:image/png;base64,{data}"]
    assert "script" not in checker.tags
    assert "link" not in checker.tags
    assert not re.search(r"@import|url\(", content)


def test_numbers_stand_to_the_right_and_rows_have_heads(sections):
    content = page(sections, "")
    assert '<td class="number">37.15</td>' in content
    assert '<td class="word">1 × cpu</td>' in content
    assert '<td class="number quiet">not run</td>' in content
    assert '<tbody class="ours">' in content
    assert content.count('<th scope="row">') == 4
    assert "position: sticky" in content
    assert "prefers-color-scheme: dark" in content
