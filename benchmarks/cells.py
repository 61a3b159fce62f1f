"""A table measured cell by cell, each in a process of its own; what was stopped goes on."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.training import write_json


def collect(
    program: str,
    out: Path,
    settings: Mapping[str, Any],
    axes: tuple[str, ...],
    cells: Iterable[tuple[str, ...]],
    *,
    arguments: Iterable[str],
    markdown: Callable[[dict[str, Any]], str],
    line: Callable[[dict[str, Any]], str],
) -> int:
    """Measures what is missing in `out`.json and keeps `out`.md beside it; returns the exit code.

    Args:
        program: `python -m program … --cell *cell` prints a cell's row as its last line.
        out: Where to write, without an ending.
        settings: What all rows must share, such as the machine; it stands beside them in the JSON.
        axes: The keys of a row that together say which cell it is.
        cells: A value for every axis, as words of a command line.
        arguments: The program's other arguments.
        markdown: Makes the table.
        line: Makes a line of progress of a row.
    """
    file = Path(f"{out}.json")
    results: dict[str, Any] = {**settings, "rows": []}
    if file.is_file():
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
            same = {name: before[name] for name in settings} == settings
            done = {tuple(str(row[axis]) for axis in axes) for row in before["rows"]}
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            print(
                f"{program}: {file} is of another machine, version or --memory, or damaged;"
                " pass another --out, or move it away.",
                file=sys.stderr,
            )
            return 2
        results = before
    else:
        done = set()
    file.parent.mkdir(parents=True, exist_ok=True)
    for cell in cells:
        if cell in done:
            continue
        child = subprocess.run(
            [sys.executable, "-m", program, *arguments, "--cell", *cell],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if child.returncode:
            print(f"{program}: {' '.join(cell)} ended with {child.returncode}.", file=sys.stderr)
            return 1
        results["rows"].append(json.loads(child.stdout.splitlines()[-1]))
        print(line(results["rows"][-1]), flush=True)
        write_json(file, results)
        Path(f"{out}.md").write_text(markdown(results), encoding="utf-8")
    return 0
