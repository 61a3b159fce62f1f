"""The page is HTML that loads nothing, for any names of runs; a failed report changes no file."""

import base64
import re
from html import unescape

import pandas as pd
import pytest

from reporting.tables import markdown
from reporting.writer import OBJECTS, bullets, html_page, join, main, picture

EVIL = "<script>alert('1')</script> & \"quoted\""


class FakeFigure:
    @staticmethod
    def savefig(path):
        path.write_bytes(b"\x89PNG not really")


def test_names_are_escaped(tmp_path):
    link = f"[{EVIL}](https://example.org/?a=1&b=2)"
    table = markdown([{EVIL: EVIL, "accuracy": "37.15"}])
    image = picture(tmp_path / "a page", "picture", FakeFigure, EVIL)
    parts = [f"# {EVIL}", f"## {EVIL}", EVIL, table, image, bullets([EVIL, link])]
    content = html_page(join(parts), tmp_path)
    assert content.startswith("<!DOCTYPE html>")
    assert "<script" not in content
    assert [unescape(text) for text in re.findall('alt="(.*?)"', content)] == [EVIL]
    assert unescape(re.sub(r"<[^>]*>", "", content)).count(EVIL) >= 6


def test_page_loads_no_resources_but_its_pictures_and_does_not_scroll(tmp_path):
    image = picture(tmp_path / "a page", "picture", FakeFigure, "ours")
    text = f"{image} ![a](https://example.org/a.png) ![b](../b.png) ![c](none.png)"
    content = html_page(text, tmp_path)
    data = base64.b64encode((tmp_path / "a page-picture.png").read_bytes()).decode()
    assert re.findall('src="(.*?)"', content) == [f"data:image/png;base64,{data}"]
    assert not re.search(r"@import|url\(|<link|overflow:|sticky|max-height", content)  # nor scrolls


FILES = ["report.html", "report.md", "report.runs.csv"]


def report(tmp_path, make):
    runs = pd.DataFrame(columns=[*OBJECTS, "name"])
    arguments = [str(tmp_path), f"--out={tmp_path}/report"]
    code = main("test", None, lambda folders: (runs, ["One is left out."]), make, arguments)
    return code, sorted(file.name for file in tmp_path.iterdir())


def test_a_report_is_markdown_html_and_other_files(tmp_path, capsys):
    made = report(tmp_path, lambda runs, left_out, path: {"md": "# A\n", "x.csv": "1\n"})
    assert made == (0, [*FILES, "report.x.csv"])
    assert capsys.readouterr() == ("# A\n", "test: One is left out.\n")


def test_a_failed_report_keeps_the_old_one(tmp_path, capsys):
    report(tmp_path, lambda runs, left_out, path: {"md": "# A\n"})

    def fail(runs, left_out, path):
        picture(path, "bars", FakeFigure, "")
        raise OSError(28, "No space left on device", "report.png")

    assert report(tmp_path, fail) == (1, FILES)
    assert "report.png: No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("text", [".", "..", "/", "runs/..", "~nobody_here/o"])
def test_an_output_path_needs_a_name(text, capsys):
    with pytest.raises(SystemExit):
        main("test", None, None, None, ["runs", f"--out={text}"])
    assert "--out" in capsys.readouterr().err
