"""The page is valid HTML that loads nothing, for any names of runs; a failed report changes no file."""

import base64
import re

import pandas as pd
import pytest

from reporting.tables import markdown
from reporting.writer import bullets, html_page, join, main, picture
from tests.reporting.html import check

EVIL = "<script>alert('1')</script> & \"quoted\""


@pytest.fixture
def png(tmp_path):
    path = tmp_path / "a picture.png"
    path.write_bytes(b"\x89PNG not really")
    return path


def test_page_is_balanced_and_names_are_escaped(png):
    link = f"[{EVIL}](https://example.org/?a=1&b=2)"
    table = markdown([{EVIL: EVIL, "accuracy": "37.15"}])
    parts = [f"# {EVIL}", f"## {EVIL}", EVIL, table, picture(png, EVIL), bullets([EVIL, link])]
    content = html_page(join(parts), png.parent)
    checker = check(content)
    assert content.startswith("<!DOCTYPE html>")
    assert "script" not in checker.tags
    assert checker.alternatives == [EVIL]
    assert "".join(checker.text).count(EVIL) >= 6


def test_page_loads_no_resources_but_its_pictures(png):
    text = f"{picture(png, 'ours')} ![a](https://example.org/a.png) ![b](../b.png) ![c](none.png)"
    content = html_page(text, png.parent)
    data = base64.b64encode(png.read_bytes()).decode()
    assert check(content).loads == [f"data:image/png;base64,{data}"]
    assert not re.search(r"@import|url\(", content)


def test_nothing_on_the_page_scrolls(png):
    assert not re.search(r"overflow:|sticky|max-height", html_page("", png.parent))


def report(tmp_path, make, out="report"):
    arguments = [str(tmp_path), f"--out={tmp_path}/{out}"]
    return main(
        "test", None, lambda folders: (pd.DataFrame(), ["One is left out."]), make, arguments
    )


def test_a_report_is_markdown_html_and_other_files(tmp_path, capsys):
    assert report(tmp_path, lambda runs, left_out, path: {"md": "# A\n", "x.csv": "1\n"}) == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "report.html",
        "report.md",
        "report.x.csv",
    ]
    captured = capsys.readouterr()
    assert captured.out == "# A\n"
    assert captured.err == "test: One is left out.\n"


def test_a_failed_report_keeps_the_old_one(tmp_path, capsys):
    report(tmp_path, lambda runs, left_out, path: {"md": "# A\n"})

    def fail(runs, left_out, path):
        path.with_name(f"{path.name}.png").write_bytes(b"new")
        raise OSError(28, "No space left on device", "report.png")

    assert report(tmp_path, fail) == 1
    assert "report.png: No space left on device" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "report.md"]


@pytest.mark.parametrize("text", [".", "..", "/", "runs/..", "~nobody_here/o"])
def test_an_output_path_needs_a_name(text, capsys):
    with pytest.raises(SystemExit):
        main("test", None, None, None, ["runs", f"--out={text}"])
    assert "--out" in capsys.readouterr().err
