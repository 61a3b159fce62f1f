"""The report as one page of HTML that needs nothing beside it: no script, no font, no other file."""

import base64
from collections.abc import Sequence
from html import escape

from harness.tables import NOT_FINISHED, NOT_RUN, NOTHING, Table
from lra.report.sections import Block, Links, Listing, Picture, Points, Section
from lra.report.tables import OURS

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --card: #ffffff; --ink: #1c2024; --quiet: #69717a; --line: #dfe3e7;
  --head: #f1f3f5; --ours: #e8f1f9; --link: #0a5c9e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15181b; --card: #1b1f23; --ink: #e4e7ea; --quiet: #98a1aa; --line: #343a41;
    --head: #23282e; --ours: #16304a; --link: #7fbcf0;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 72rem; padding: 2rem clamp(1rem, 4vw, 3rem) 4rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h1 { font-size: clamp(1.6rem, 5vw, 2.2rem); line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 3rem 0 .8rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; margin: .8rem 0; }
header p { color: var(--quiet); }
a { color: var(--link); text-underline-offset: .15em; }
nav ul { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; list-style: none; margin: 1rem 0 0; padding: 0; }
.table {
  overflow: auto; max-height: 85vh; margin: 1rem 0 1.4rem;
  border: 1px solid var(--line); border-radius: .5rem; background: var(--card);
}
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .9rem; }
th, td { padding: .4rem .8rem; text-align: left; font-weight: 400; white-space: nowrap; }
tbody tr + tr > *, tbody + tbody > tr:first-child > * { border-top: 1px solid var(--line); }
thead th {
  position: sticky; top: 0; z-index: 2; background: var(--head);
  border-bottom: 1px solid var(--line); font-weight: 600; vertical-align: bottom; white-space: normal;
}
tbody th[scope=row] {
  position: sticky; left: 0; background: var(--card); white-space: normal; min-width: 11rem;
}
tbody th[scope=rowgroup] {
  font-weight: 600; font-size: .82rem; color: var(--quiet); background: var(--head);
}
.number { text-align: right; font-variant-numeric: tabular-nums; }
.quiet { color: var(--quiet); }
.ours td, .ours th[scope=row] { background: var(--ours); }
figure { margin: 1.2rem 0; }
img {
  display: block; max-width: 100%; height: auto; padding: .5rem;
  border: 1px solid var(--line); border-radius: .5rem; background: #ffffff;
}
details { margin: .4rem 0; }
summary { cursor: pointer; color: var(--link); }
pre {
  overflow-x: auto; margin: .5rem 0 1rem; padding: .8rem 1rem; font-size: .82rem; line-height: 1.5;
  border: 1px solid var(--line); border-radius: .5rem; background: var(--card);
}
@media (max-width: 40rem) {
  body { padding-top: 1.2rem; }
  th, td { padding: .35rem .55rem; }
  tbody th[scope=row] { min-width: 6.5rem; max-width: 9rem; }
  figure { overflow-x: auto; }
  img { max-width: none; width: 44rem; }
}
@media print { .table { max-height: none; overflow: visible; } }
"""


def page(sections: Sequence[Section], summary: str) -> str:
    """The whole page; pictures are read from their files and become part of it."""
    contents = "".join(
        f'<li><a href="#{escape(section.anchor)}">{escape(section.title)}</a></li>\n'
        for section in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Long Range Arena: results</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>Long Range Arena: results</h1>
<p>{escape(summary)}</p>
<nav aria-label="Contents">
<ul>
{contents}</ul>
</nav>
</header>
<main>
{"".join(map(_section, sections))}</main>
</body>
</html>
"""


def _section(section: Section) -> str:
    blocks = "".join(_block(block, section.title) for block in section.blocks)
    return f'<section id="{escape(section.anchor)}">\n<h2>{escape(section.title)}</h2>\n{blocks}</section>\n'


def _block(block: Block, title: str) -> str:
    match block:
        case Table():
            return _table(block, title)
        case Picture(path, alternative):
            data = base64.b64encode(path.read_bytes()).decode()
            return f'<figure><img src="data:image/png;base64,{data}" alt="{escape(alternative)}"></figure>\n'
        case Points(sentences):
            rows = "".join(f"<li>{escape(sentence)}</li>\n" for sentence in sentences)
            return f"<ul>\n{rows}</ul>\n"
        case Listing(name, lines):
            text = escape("\n".join(lines))
            return f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>\n"
        case Links(items):
            rows = "".join(
                f'<li><a href="{escape(url)}">{escape(name)}</a>. {escape(remark)}</li>\n'
                for name, url, remark in items
            )
            return f"<ul>\n{rows}</ul>\n"
        case text:
            return f"<p>{escape(text)}</p>\n"


def _table(table: Table, title: str) -> str:
    """A table in a box that scrolls by itself, so that its heading can stay in sight."""
    right = [' class="number"' if numbers else "" for numbers in table.of_numbers]
    heads = "".join(
        f'<th scope="col"{place}>{_unbroken(name)}</th>'
        for name, place in zip(table.columns, right, strict=True)
    )
    bodies = []
    for name, rows in table.sections:
        part = f'<tr><th scope="rowgroup" colspan="{len(table.columns)}">{escape(name)}</th></tr>\n'
        kind = ' class="ours"' if name == OURS else ""
        bodies.append(f"<tbody{kind}>\n{part if name else ''}")
        for first, *others in rows:
            cells = [
                f'<td class="{_kind(cell, numbers)}">{escape(cell)}</td>'
                for cell, numbers in zip(others, table.of_numbers[1:], strict=True)
            ]
            bodies.append(f'<tr><th scope="row">{escape(first)}</th>{"".join(cells)}</tr>\n')
        bodies.append("</tbody>\n")
    label = f"{title}: {table.columns[0]} by {', '.join(table.columns[1:])}"
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="{escape(label)}">\n<table>\n'
        f"<thead><tr>{heads}</tr></thead>\n{''.join(bodies)}</table>\n</div>\n"
    )


def _unbroken(heading: str) -> str:
    """A heading that breaks at its spaces alone: Path-X stays whole."""
    return escape(heading).replace("-", "&#8209;")


def _kind(cell: str, numbers: bool) -> str:
    quiet = cell in (NOT_RUN, NOT_FINISHED, NOTHING) or cell.endswith("partial")
    return " ".join(["number"] * numbers + ["quiet"] * quiet) or "word"
