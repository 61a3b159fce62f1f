"""Writes a report: Markdown, the same page as HTML, figures and files of numbers."""

import argparse
import base64
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pandas as pd

from cli.commands import parser_of, run_to_end
from dataprep.cache import user_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OBJECTS = ["metrics", "setting", "baselines"]  # columns that are not in the CSV file of runs
STYLE = """
:root { color-scheme: light dark; --line: #dfe3e7; --head: #f1f3f5; }
@media (prefers-color-scheme: dark) { :root { --line: #343a41; --head: #23282e; } }
body {
  margin: 0 auto; max-width: 74rem; padding: 1rem clamp(.6rem, 3vw, 2rem) 3rem;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
h2 { margin-top: 2.5rem; }
p, li { max-width: 46rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { padding: .3rem .6rem; text-align: left; font-variant-numeric: tabular-nums; }
th, tr:has(strong) > td { background: var(--head); vertical-align: bottom; }
tr > * { border-bottom: 1px solid var(--line); }
img { display: block; max-width: 100%; height: auto; background: #ffffff; }
@media (max-width: 50rem) {
  table { font-size: .62rem; } th, td { padding: .15rem .2rem; overflow-wrap: anywhere; }
}
"""


def main(
    program: str,
    description: str | None,
    read: Callable[[Sequence[Path]], tuple[pd.DataFrame, Sequence[str]]],
    make: Callable[..., Mapping[str, str]],
    arguments: Sequence[str] | None = None,
    *,
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Runs the command `python -m PROGRAM`: reads runs, writes a report and prints it as Markdown.

    `read` returns the runs in folders, and a sentence for each run that was left out. `make` is called with
    these and a path; it writes figures to files whose names begin with that path, and returns the content of
    other files by ending, among them "md". "html" and "runs.csv" are added. The keyword arguments of `make`
    are the values of `flags`, which map a name to options of argparse. Returns the exit code.
    """
    parser = parser_of(program, description)
    parser.add_argument(
        "folders", nargs="+", type=path_argument, help="runs, or folders that contain runs"
    )
    parser.add_argument(
        "--out", type=output_path, required=True, help="output path without extension"
    )
    for name, options in (flags or {}).items():
        parser.add_argument(f"--{name}", **options)
    given = parser.parse_args(arguments)

    def report() -> None:
        runs, left_out = read(given.folders)
        for sentence in left_out:
            print(f"{program}: {sentence}", file=sys.stderr)
        values = {name: getattr(given, name) for name in flags or {}}
        with staged(given.out) as path:
            texts = dict(make(runs, left_out, path, **values))
            texts["html"] = html_page(texts["md"], path.parent)
            texts["runs.csv"] = (
                runs.drop(columns=OBJECTS).assign(folder=runs["name"]).to_csv(index=False)
            )
            for ending, text in texts.items():
                path.with_name(f"{path.name}.{ending}").write_text(text, encoding="utf-8")
        print(texts["md"], end="")

    return run_to_end(program, report)


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
    """Joins parts of a Markdown page with blank lines; empty parts are left out."""
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def bullets(sentences: Iterable[str]) -> str:
    """Returns a bullet list in Markdown."""
    return "\n".join(f"* {sentence}" for sentence in sentences)


def picture(path: Path, name: str, figure: "Figure", description: str) -> str:
    """Saves a figure as `<path>-<name>.png`, in the folder of the page; returns its Markdown."""
    file = path.with_name(f"{path.name}-{name}.png")
    figure.savefig(file)
    return f"![{description}]({quote(file.name)})"


def html_page(markdown: str, folder: Path) -> str:
    """Converts Markdown to a self-contained HTML page that embeds the images in `folder`."""
    from markdown_it import MarkdownIt

    def embed(image: re.Match[str]) -> str:
        file = folder / unquote(image[1])
        if file.suffix != ".png" or file.parent != folder or not file.is_file():
            return image[2]  # from the name of a run, not a figure of the report
        data = base64.b64encode(file.read_bytes()).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{image[2]}">'

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', embed, parser.render(markdown))
    title = re.match(r"# (.*)", markdown)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title[1] if title else "Report")}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}</main>
</body>
</html>
"""
