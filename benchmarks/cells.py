"""Measures tables cell by cell, each cell in its own process. The same command resumes."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.stored import add_command, command_line, describe_source, open_results
from command import parser_of, run_to_end
from nystromformer_jax.durable import write_json
from reporting.writer import output_path


def parser_for(program: str, doc: str | None, num_axes: int) -> argparse.ArgumentParser:
    """Returns the parser of a program that calls `collect`, with `--out` and the hidden `--cell`."""
    parser = parser_of(program, doc)
    parser.add_argument(
        "--out", type=output_path, required=True, help="output path without extension"
    )
    parser.add_argument("--cell", nargs=num_axes, help=argparse.SUPPRESS)
    return parser


def require_topologies(parser: argparse.ArgumentParser, names: Iterable[str]) -> None:
    """Ends the program with an error if a topology is unknown or its compiler is not installed."""
    from nystromformer_jax.training.topology import topology_devices

    try:
        for name in names:
            topology_devices(name)
    except ValueError as error:
        parser.error(str(error))


def collect(
    program: str,
    out: Path,
    settings: Mapping[str, Any],
    axes: tuple[str, ...],
    cells: Iterable[tuple[str, ...]],
    *,
    arguments: Iterable[str] = (),
    retry_arguments: Callable[[dict[str, Any]], list[str]] = lambda row: [],
    markdown: Callable[[dict[str, Any]], str],
    line: Callable[[dict[str, Any]], str] = str,
) -> int:
    """Measures the cells that `out`.json lacks, rewrites `out`.md, and returns the exit code.

    Args:
      program: `python -m program --out=… --cell *cell` prints a cell's row as its last line. If the system
        kills the process because memory runs out, the last printed line is used.
      out: Output path without extension.
      settings: Values that all rows share, such as the machine and versions; "versions" must be among them.
      axes: Keys of a row that identify its cell.
      cells: A value for every axis, as words of a command line.
      arguments: Other arguments of the program.
      retry_arguments: Given a row, returns more arguments to measure its cell again; empty to keep the row.
      markdown: Returns the table.
      line: Returns a line of progress for a row.
    """
    file = Path(f"{out}.json")

    def measure_missing() -> int:
        results = open_results(file, settings, axes=axes)
        done = {tuple(str(row[axis]) for axis in axes) for row in results["rows"]}
        missing = [cell for cell in cells if cell not in done]
        if missing:
            add_command(results, command_line(program))
        file.parent.mkdir(parents=True, exist_ok=True)

        def write_markdown() -> None:
            text = f"{describe_source(results)}\n\n{markdown(results)}"
            Path(f"{out}.md").write_text(text, encoding="utf-8")

        for cell in missing:
            row = _measure(program, [f"--out={out}", *arguments], cell, retry_arguments)
            if row is None:
                return 1
            results["rows"].append(row)
            write_json(file, results)
            write_markdown()
            print(line(row), flush=True)
        write_markdown()  # also if no cell was missing
        return 0

    return run_to_end(program, measure_missing)


def _measure(
    program: str,
    arguments: Iterable[str],
    cell: tuple[str, ...],
    retry_arguments: Callable[[dict[str, Any]], list[str]],
) -> dict[str, Any] | None:
    """Returns the row of a cell, or None after an error message if its process failed."""
    more: list[str] = []
    while True:
        code, printed = _run([sys.executable, "-m", program, *arguments, *more, "--cell", *cell])
        if code and not (code == -signal.SIGKILL and printed):
            print(f"{program}: {' '.join(cell)} ended with {code}.", file=sys.stderr)
            return None
        row: dict[str, Any] = json.loads(printed[-1])
        if not (more := retry_arguments(row)):
            return row


def _run(command: Sequence[str]) -> tuple[int, list[str]]:
    """Returns the exit code and the lines that a command printed; a signal to this process kills it."""
    # In its own process group, so that Ctrl-C interrupts only this process.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0) as child:
        try:
            printed, _ = child.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                os.killpg(child.pid, signal.SIGKILL)  # also processes that it has started
            raise
    return child.returncode, printed.splitlines()
