"""The page is valid HTML that loads nothing, for any names of runs."""

import base64
import re
from html import unescape

import pytest

from lra.report.tables import TRACKS, benchmark_table
from reporting.tables import Table
from reporting.writer import STYLE, Report, bullets, html_page, join, main, picture
from tests.lra.report.runs import FIVE, groups_in, write_diverged, write_run, write_seeds
from tests.reporting.html import check

EVIL = "<script>alert('1')</script> & \"quoted\""


@pytest.fixture
def png(tmp_path):
    path = tmp_path / "a picture.png"
    path.write_bytes(b"\x89PNG not really")
    return path


@pytest.fixture
def markdown(png):
    rows = [[EVIL, "37.15", "1 × cpu"], ["b", "not run", EVIL]]
    table = Table(
        [EVIL, "accuracy", "device"], [*((title, rows) for title in TRACKS.values()), (EVIL, rows)]
    )
    link = f"[{EVIL}](https://example.org/?a=1&b=2)"
    parts = [f"# {EVIL}", f"## {EVIL}", EVIL, table.markdown(), picture(png, EVIL)]
    parts += [bullets([EVIL, link]), "## Sources", f"```\n{EVIL}\n```"]
    return join(parts)


def test_page_is_balanced_and_its_contents_link_to_headings(markdown, tmp_path):
    content = html_page(markdown, tmp_path)
    checker = check(content)
    assert content.startswith("<!DOCTYPE html>")
    assert checker.anchors == checker.ids == ["section-1", "section-2"]
    assert {"html", "head", "title", "nav", "main", "table", "img", "pre"} <= set(checker.tags)


def test_names_are_escaped(markdown, tmp_path):
    checker = check(html_page(markdown, tmp_path))
    assert "script" not in checker.tags
    assert checker.alternatives == [EVIL]
    assert "".join(checker.text).replace("\xa0", " ").count(EVIL) >= 10


def test_page_loads_no_resources(markdown, png):
    content = html_page(
        markdown + "\n![a](https://example.org/a.png) ![b](other.png)\n", png.parent
    )
    checker = check(content)
    data = base64.b64encode(png.read_bytes()).decode()
    assert checker.loads == [f"data:image/png;base64,{data}"]
    assert "script" not in checker.tags
    assert "link" not in checker.tags
    assert not re.search(r"@import|url\(", content)


def test_numbers_are_right_aligned_and_rows_have_headers(markdown, tmp_path):
    content = html_page(markdown, tmp_path)
    assert '<td style="text-align:right">37.15</td>' in content
    assert "<td>1 × cpu</td>" in content
    assert content.count('<tr class="ours">') == 2 * len(TRACKS)
    assert content.count('<tr class="section">') == len(TRACKS) + 1
    assert content.count('<th scope="row">') == 3 * (len(TRACKS) + 1)
    assert "position: sticky" in content
    assert "prefers-color-scheme: dark" in content


def test_benchmark_table_fits_into_1400_pixels(tmp_path):
    for number, task in enumerate([*FIVE, "pathfinder128"]):
        write_seeds(tmp_path / task, [0.3, 0.31, 0.32 + number / 100], task=task)
        write_run(tmp_path / f"{task}-stopped", task=task, seed=3, finished=False)
        write_diverged(tmp_path / f"{task}-diverged", task=task, seed=4)
    table = benchmark_table(groups_in(tmp_path))
    text = html_page(table.markdown(), tmp_path)
    rows = [
        re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)
        for row in re.findall(r"<tr(?: class=\"ours\")?>.*?</tr>", text, re.DOTALL)
    ]
    rows = [[unescape(cell) for cell in row] for row in rows if len(row) == len(table.columns)]
    assert "(n\xa0=\xa03 of\xa05, 1\xa0diverged)" in rows[1][1]
    # Letters of the longest word of each column, and its margins; cells break at plain spaces.
    assert not re.search(r"^th, td {[^}]*nowrap", STYLE, re.MULTILINE)
    longest = [
        max(len(piece) for cell in cells for piece in cell.split(" "))
        for cells in zip(*rows, strict=True)
    ]
    width = sum(7.6 * letters + 26 for letters in longest)
    body = 16 * int(re.search(r"max-width: (\d+)rem; padding: 2rem", STYLE)[1])
    assert width <= min(body, 1400 - 16) - 2 * 48 - 16  # without margins and scroll bars


def test_home_is_expanded(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    read = []

    def make(groups, left_out, path):
        return Report("# Empty", {})

    arguments = ["~/runs", "--out=~/report"]
    assert main("test", None, lambda folders: (read.extend(folders), ()), make, arguments) == 0
    assert read == [tmp_path / "runs"]
    assert (tmp_path / "report.md").exists()


@pytest.mark.parametrize(
    "arguments", [["~nobody_here/x", "--out=o"], ["x", "--out=~nobody_here/o"]]
)
def test_an_unknown_user_in_a_path_is_named(arguments, capsys):
    with pytest.raises(SystemExit):
        main("test", None, lambda folders: ((), ()), Report, arguments)
    assert "this user does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("text", [".", "..", "/", "runs/.."])
def test_an_output_path_needs_a_name(text, capsys):
    with pytest.raises(SystemExit):
        main("test", None, lambda folders: ((), ()), Report, ["runs", f"--out={text}"])
    assert (
        f"--out: needs a file name without extension, got {text!r}: pass" in capsys.readouterr().err
    )
