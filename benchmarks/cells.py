"""Measures tables cell by cell, each in its own process, and stores them with their machine and versions.

The same command resumes. A table is a JSON file with the settings and the commands, and its rows.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.commands import parser_of, run_to_end
from launch import huge_pages
from nystromformer_jax.support.durable import read_json, write_json
from nystromformer_jax.training import describe_environment
from reporting.writer import output_path

# Packages that compile for a TPU or GPU that is not there.
COMPILERS = ("libtpu", "jax-cuda12-plugin", "nvidia-cuda-nvcc-cu12")


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


def command_line(program: str, arguments: Sequence[str] | None = None) -> str:
    """Returns the command of a program; its arguments are those of this process by default."""
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", program, *words])


def open_results(
    file: Path,
    settings: Mapping[str, Any],
    *,
    lists: Sequence[str] = ("rows",),
    axes: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the stored results, or empty results if the file does not exist.

    Args:
      file: JSON file.
      settings: Values that all rows share, among them "versions".
      lists: Names of the lists of rows.
      axes: Keys that every row must have.

    Raises:
      ValueError: The file contains something else, or results with different settings.
    """
    if not file.is_file():
        return {"settings": dict(settings), "commands": [], **{name: [] for name in lists}}
    results = read_json(file)
    keys = {"settings": dict, "commands": list, **dict.fromkeys(lists, list)}
    missing = [key for key, kind in keys.items() if not isinstance(results.get(key), kind)]
    if not missing:
        rows = [row for name in lists for row in results[name]]
        missing = sorted({axis for axis in axes for row in rows if axis not in row})
    if missing:
        raise ValueError(
            f"{file} contains another table, without {', '.join(missing)}: pass another --out, or move"
            " the file away."
        )
    stored, current = _flatten_versions(results["settings"]), _flatten_versions(settings)
    differences = [
        f"{name} {_value(stored, name)} in the file, {_value(current, name)} now"
        for name in sorted(stored.keys() | current.keys())
        if _value(stored, name) != _value(current, name)
    ]
    if differences:
        raise ValueError(
            f"{file} contains results with different settings ({'; '.join(differences)}): pass another"
            " --out, or move the file away."
        )
    return results


def add_command(results: dict[str, Any], command: str) -> None:
    """Adds a command to the results, unless it is there: a resumed run has the same command."""
    if command not in results["commands"]:
        results["commands"].append(command)


def describe_source(results: Mapping[str, Any]) -> str:
    """Returns a sentence with the commands, the machine and the versions."""
    settings = results["settings"]
    commands = ", ".join(f"`{command}`" for command in results["commands"])
    used = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    return f"{commands}: {_machine(settings)}; {used}."


def _machine(settings: Mapping[str, Any]) -> str:
    if topology := settings.get("topology"):
        return f"compiled ahead of time for {topology}, not run"
    if "processor" not in settings:  # the rows name what they were compiled for
        return "compiled ahead of time, not run"
    device, count = settings["device"], settings["device_count"]
    accelerator = "" if device == "cpu" else f"{count} × {device}, host "
    threads = settings["cpu_threads"]
    pages = ", huge pages" if settings["huge_pages"] else ""
    return f"{accelerator}{settings['processor']}, {threads} thread{'s' * (threads != 1)}{pages}"


def _flatten_versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings with a key for each version."""
    own = {key: value for key, value in settings.items() if key != "versions"}
    return {**own, **(settings.get("versions") or {})}


def _value(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "missing"


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
