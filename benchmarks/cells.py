"""Measures tables cell by cell, each cell in its own process. The same command resumes."""

import json
import signal
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
    again: Callable[[dict[str, Any]], list[str]] = lambda row: [],
    markdown: Callable[[dict[str, Any]], str],
    line: Callable[[dict[str, Any]], str],
) -> int:
    """Measures the cells that `out`.json lacks, rewrites `out`.md, and returns the exit code.

    Args:
        program: `python -m program … --cell *cell` prints a cell's row as its last line. If the system kills
            the process because memory runs out, the last line that it printed counts.
        out: Output path without extension.
        settings: Values that all rows share, such as the machine; they are stored with the rows.
        axes: Keys of a row that identify its cell.
        cells: A value for every axis, as words of a command line.
        arguments: Other arguments of the program.
        again: Given a row, returns more arguments to measure its cell again; empty to keep the row.
        markdown: Returns the table.
        line: Returns a line of progress for a row.
    """
    file = Path(f"{out}.json")
    results: dict[str, Any] = {**settings, "rows": []}
    if file.is_file():
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            others = [name for name in settings if results[name] != settings[name]]
            done = {tuple(str(row[axis]) for axis in axes) for row in results["rows"]}
            wrong = f"was made with other settings ({', '.join(others)})" if others else ""
        except (ValueError, KeyError, TypeError):
            wrong = "is corrupt"
        if wrong:
            print(
                f"{program}: {file} {wrong}; pass another --out, or move it away.", file=sys.stderr
            )
            return 2
    else:
        done = set()
    file.parent.mkdir(parents=True, exist_ok=True)

    def write_markdown() -> None:
        Path(f"{out}.md").write_text(markdown(results), encoding="utf-8")

    for cell in cells:
        if cell in done:
            continue
        more: list[str] = []
        while True:
            child = subprocess.run(
                [sys.executable, "-m", program, *arguments, *more, "--cell", *cell],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            printed = child.stdout.splitlines()
            if child.returncode and not (child.returncode == -signal.SIGKILL and printed):
                print(
                    f"{program}: {' '.join(cell)} ended with {child.returncode}.", file=sys.stderr
                )
                return 1
            row = json.loads(printed[-1])
            if not (more := again(row)):
                break
        results["rows"].append(row)
        print(line(row), flush=True)
        write_json(file, results)
        write_markdown()
    write_markdown()  # also if no cell was missing
    return 0
