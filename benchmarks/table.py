"""Tables that are measured cell by cell and stored with the machine and versions; the same command resumes.

A cell is a tuple with a value for each axis of the table, such as a config and an attention.
"""

import argparse
import errno
import importlib.metadata
import itertools
import multiprocessing
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from cli.commands import parser_of
from launch import huge_pages
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.training import describe_environment
from reporting.writer import output_path

# Packages that compile for a TPU or GPU that is not there.
COMPILERS = ("libtpu", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12")

Row = dict[str, Any]


class Table:
    """Rows in `out`.json with their settings and commands."""

    def __init__(
        self,
        program: str,
        out: Path | None,
        settings: Mapping[str, Any],
        *,
        parts: Sequence[str] = ("rows",),
        arguments: Sequence[str] | None = None,
    ) -> None:
        """Opens the table, which is empty if `out`.json does not exist.

        Args:
          program: Module of the command, such as `benchmarks.steps`.
          out: Output path without extension; None: nothing is stored.
          settings: Values that all rows share, such as the machine; "versions" must be among them.
          parts: Names of the lists of rows.
          arguments: Arguments of the command; by default those of this process.

        Raises:
          ValueError: `out`.json contains something else, or rows with different settings.
        """
        self._program, self._out = program, out
        self._command = command_line(program, arguments)
        self.results: dict[str, Any] = {"settings": dict(settings), "commands": []}
        self.results |= {part: [] for part in parts}
        self._parts = parts
        if out is not None and (file := Path(f"{out}.json")).is_file():
            stored = read_json(file)
            _require_same(stored, self.results, file)
            self.results |= stored  # an older file may lack a part

    def fill(
        self,
        axes: Sequence[str],
        cells: Iterable[tuple[Any, ...]],
        measure: Callable[..., Row | Iterable[Row]],
        *,
        part: str = "rows",
        peers: bool = False,
    ) -> None:
        """Measures the cells that have no row, and writes the table after each.

        Args:
          axes: Keys of a row that identify its cell.
          cells: Values of the axes.
          measure: Returns the row of a cell, given its values.
          part: The list to which the rows belong.
          peers: The values of the last axis are measured together. `measure` gets those that are missing as a
            list, and returns a row for each.
        """
        rows = self.results[part]
        if another := sorted({axis for row in rows for axis in axes if axis not in row}):
            raise ValueError(
                f"{self._out}.json contains another table, without {', '.join(another)}: {MOVE}"
            )
        done = {tuple(row[axis] for axis in axes) for row in rows}
        missing = [cell for cell in cells if cell not in done]
        if missing and self._command not in self.results["commands"]:
            self.results["commands"].append(self._command)
        if peers:
            groups = itertools.groupby(missing, lambda cell: cell[:-1])
            missing = [(*group, [cell[-1] for cell in members]) for group, members in groups]
        for cell in missing:
            found = measure(*cell)
            rows.extend([found] if isinstance(found, dict) else found)
            self.write()
            print(f"{self._program}:", *cell, file=sys.stderr, flush=True)

    def write(self) -> None:
        """Writes the rows."""
        if self._out is None:
            return
        self._out.parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(f"{self._out}.json"), self.results)

    def finish(self, show: Callable[[dict[str, Any]], str] | None = None) -> None:
        """Writes the table and prints `show` of the results, by default all rows."""
        self.write()
        if show is not None:
            print(show(self.results))
            return
        for part in self._parts:
            if rows := self.results[part]:
                print(pd.json_normalize(rows).to_string(index=False))


MOVE = "pass another --out, or move the file away."


def _require_same(stored: Mapping[str, Any], new: Mapping[str, Any], file: Path) -> None:
    if missing := [key for key in ("settings", "commands") if stored.get(key) is None]:
        raise ValueError(f"{file} contains another table, without {', '.join(missing)}: {MOVE}")
    old, now = (
        {**results["settings"], **results["settings"].get("versions", {}), "versions": None}
        for results in (stored, new)
    )
    if different := [
        key for key in sorted(old.keys() | now.keys()) if old.get(key) != now.get(key)
    ]:
        changes = "; ".join(
            f"{key} {old.get(key)!r} in the file, {now.get(key)!r} now" for key in different
        )
        raise ValueError(f"{file} contains results with different settings ({changes}): {MOVE}")


# --- The command and its machine ------------------------------------------------------------------


def parser_for(program: str, doc: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a program that makes a table, with `--out`."""
    parser = parser_of(program, doc)
    parser.add_argument(
        "--out", type=output_path, required=True, help="output path without extension"
    )
    return parser


def command_line(program: str, arguments: Sequence[str] | None = None) -> str:
    """Returns the command of a program; its arguments are those of this process by default."""
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", program, *words])


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python, of the libraries of a run, and of `packages` if installed."""
    found: dict[str, str] = describe_environment()["versions"]
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def this_machine(*packages: str) -> dict[str, Any]:
    """Returns the devices, processor, threads, huge pages and versions, on which times depend."""
    environment = describe_environment()
    device = environment["device"]
    return {
        "device": device["kind"],
        "device_count": device["count"],
        "processor": environment["processor"],
        "cpu_threads": environment["cpu_threads"],
        "huge_pages": huge_pages.in_use(),
        "versions": versions(*packages),
    }


# --- Processes ------------------------------------------------------------------------------------


def use_cpu() -> None:
    """Makes JAX use the CPU in this process and in those that it starts, so that none locks a TPU."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax.config.update("jax_platforms", "cpu")


def in_own_process(measure: Callable[..., Row], *arguments: Any) -> Row:
    """Returns `measure(*arguments)`, called in a new process. Its exceptions are raised here.

    Raises:
      MemoryError: The system killed the process, as Linux does if memory runs out.
      ChildProcessError: The process ended without a result.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send, args=(sender, measure, arguments))
    # The child inherits it, so Ctrl-C interrupts only this process.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    child.start()
    signal.signal(signal.SIGINT, handler)
    sender.close()
    try:
        found = receiver.recv()
    except EOFError:
        child.join()
        sentence = f"{' '.join(map(str, arguments))} ended with {child.exitcode}."
        if child.exitcode == -signal.SIGKILL:
            raise MemoryError(sentence) from None
        raise ChildProcessError(errno.ECHILD, sentence) from None
    finally:
        child.kill()
        child.join()
    if isinstance(found, Exception):
        raise found
    row: Row = found
    return row


def _send(sender: Connection, measure: Callable[..., Row], arguments: Iterable[Any]) -> None:
    try:
        sender.send(measure(*arguments))
    except Exception as error:
        error.add_note(traceback.format_exc())
        sender.send(error)
