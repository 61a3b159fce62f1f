"""Writes a report: Markdown, HTML, JSON numbers, figures and other files."""

import argparse
import base64
import contextlib
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from command import parser_of, run_to_end
from dataprep.cache import user_path
from reporting.tables import OURS

G = TypeVar("G")

STYLE = """
:root { color-scheme: light dark; --ours: #e8f1f9; --head: #f1f3f5; --card: #ffffff; --line: #dfe3e7; }
@media (prefers-color-scheme: dark) {
  :root { --ours: #16304a; --head: #23282e; --card: #1b1f23; --line: #343a41; }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 88rem; padding: 2rem clamp(1rem, 4vw, 3rem) 4rem;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h2 { margin: 3rem 0 .8rem; padding-top: 1rem; border-top: 1px solid var(--line); }
p { max-width: 46rem; }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; }
.table, pre { overflow: auto; max-height: 85vh; border: 1px solid var(--line); background: var(--card); }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .9rem; }
th, td { padding: .4rem .8rem; text-align: left; font-weight: 400; font-variant-numeric: tabular-nums; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
thead th { position: sticky; top: 0; z-index: 2; background: var(--head); vertical-align: bottom; }
tbody th { position: sticky; left: 0; background: var(--card); min-width: 11rem; }
tr.section > * { background: var(--head); }
tr.ours > * { background: var(--ours); }
img { display: block; max-width: 100%; height: auto; padding: .5rem; background: #ffffff; }
pre { padding: .8rem 1rem; font-size: .82rem; }
@media (max-width: 40rem) { tbody th { min-width: 6.5rem; max-width: 9rem; } }
@media print { .table { max-height: none; overflow: visible; } }
"""


class Report(NamedTuple):
    """Content of a report."""

    markdown: str
    numbers: Any  # plain values, for JSON
    files: Mapping[str, str] | None = None  # content of other files, by extension


def main(
    program: str,
    description: str | None,
    read: Callable[[Sequence[Path]], tuple[G, Sequence[str]]],
    make: Callable[..., Report],
    arguments: Sequence[str] | None = None,
    *,
    default_out: Path | None = None,
    html: bool = False,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Runs the command `python -m PROGRAM`: reads runs, writes a report and prints it as Markdown.

    `read` returns the groups of all runs in folders, and a sentence for each run that was left out. `make` is
    called with these and a path; it writes figures to files whose names begin with that path, and returns
    a `Report`. Its keyword arguments are the values of `flags`, which map a name to options of argparse. With
    `html`, the report is also written as HTML. Without `default_out`, the flag `--out` is required. Returns
    the exit code.
    """
    parser = parser_of(program, description)
    parser.add_argument(
        "folders", nargs="+", type=path_argument, help="runs, or folders that contain runs"
    )
    parser.add_argument(
        "--out",
        type=output_path,
        required=default_out is None,
        default=default_out,
        help="output path without extension",
    )
    for name, options in (flags or {}).items():
        parser.add_argument(f"--{name}", **options)
    given = parser.parse_args(arguments)
    out: Path = given.out

    def report() -> None:
        groups, left_out = read(given.folders)
        for sentence in left_out:
            print(f"{program}: {sentence}", file=sys.stderr)
        values = {name: getattr(given, name) for name in flags or {}}
        print(write(out, lambda path: make(groups, left_out, path, **values), html=html), end="")

    return run_to_end(program, report)


def write(out: Path, make: Callable[[Path], Report], *, html: bool) -> str:
    """Writes all files of a report, or none on failure, and returns the Markdown; see `main`."""
    with staged(out) as path:
        markdown, numbers, files = make(path)
        content = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        texts = {"md": markdown, "json": content, **(files or {})}
        if html:
            texts["html"] = html_page(markdown, path.parent)
        for ending, text in texts.items():
            path.with_name(f"{path.name}.{ending}").write_text(text, encoding="utf-8")
    return markdown


def path_argument(text: str) -> Path:
    """Converts an argument to a path for argparse, with `~` expanded."""
    try:
        return user_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def output_path(text: str) -> Path:
    """Converts the value of `--out`, a path without extension, for argparse; "." and ".." are errors."""
    out = path_argument(text)
    if out.name in ("", ".."):
        raise argparse.ArgumentTypeError(
            f"needs a file name without extension, got {text!r}: pass a path such as {out / 'report'}"
        )
    return out


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """Yields a path of the name `out.name` in a temporary folder, whose files are moved beside `out`.

    If the block raises an error, no file is moved.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as name:
        folder = Path(name)
        yield folder / out.name
        for file in sorted(folder.iterdir()):
            os.replace(file, out.parent / file.name)


def join(parts: Iterable[str]) -> str:
    """Joins parts of a Markdown page with blank lines."""
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def bullets(sentences: Iterable[str]) -> str:
    """Returns a bullet list in Markdown."""
    return "\n".join(f"* {sentence}" for sentence in sentences)


def picture(path: Path, description: str) -> str:
    """Returns the Markdown of an image in the folder of the page."""
    return f"![{description}]({quote(path.name)})"


def html_page(markdown: str, folder: Path) -> str:
    """Converts Markdown to a self-contained HTML page that embeds the images in `folder`."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(markdown)
    _embed_images(tokens, folder)
    titles, links = ["Report"], list[str]()
    for token, inner in itertools.pairwise(tokens):
        match token.type, token.tag:
            case "heading_open", "h1":
                titles.append(escape(inner.content))
            case "heading_open", "h2":
                token.attrSet("id", f"section-{len(links) + 1}")
                links.append(f'<a href="#section-{len(links) + 1}">{escape(inner.content)}</a>\n')
    _mark_tables(tokens)
    body = str(parser.renderer.render(tokens, parser.options, {}))
    body = body.replace("<table>", '<div class="table" role="region" tabindex="0">\n<table>')
    body = body.replace("</table>", "</table>\n</div>")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{titles[-1]}</title>
<style>{STYLE}</style>
</head>
<body>
<nav aria-label="Contents">
{"".join(links)}</nav>
<main>
{body}</main>
</body>
</html>
"""


def _embed_images(tokens: Sequence[Any], folder: Path) -> None:
    """Embeds the images in `folder`; other images become text."""
    files = {file.name: file for file in folder.glob("*.png")}
    for token in tokens:
        for child in token.children or []:
            if child.type != "image":
                continue
            if file := files.get(unquote(str(child.attrs["src"]))):
                data = base64.b64encode(file.read_bytes()).decode()
                child.attrs["src"] = f"data:image/png;base64,{data}"
            else:  # from the name of a run, not a figure of the report
                child.type = "text"


def _mark_tables(tokens: Sequence[Any]) -> None:
    """Marks row headings, sections and our rows for the style sheet, and controls line breaks in cells."""
    is_ours = False
    for token, following, text, end in zip(
        tokens, tokens[1:], tokens[2:], tokens[3:], strict=False
    ):
        if token.type == "table_open":
            is_ours = False
        elif token.type == "tr_open" and following.type == "td_open":
            following.tag = end.tag = "th"
            following.attrSet("scope", "row")
            if text.content.startswith("**"):
                is_ours = text.content.startswith(f"**{OURS}")
                token.attrSet("class", "section")
            elif is_ours:
                token.attrSet("class", "ours")
        elif (
            token.type == "td_open"
            and "style" in token.attrs
            and re.search(r"\d", following.content)
        ):
            # Allows breaks before "(" and "of" and after a comma.
            for child in following.children or []:
                child.content = re.sub(r"(?<!,) (?!\(|of )", "\u00a0", child.content)
        elif token.type == "th_open":
            for child in following.children or []:
                child.content = child.content.replace("-", "\u2011")  # keeps Path-X on one line
