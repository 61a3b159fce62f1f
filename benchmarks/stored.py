"""Stored measurements: a JSON file with the settings and the commands of a table, and its rows."""

import importlib.metadata
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import huge_pages
from nystromformer_jax.durable import read_json
from nystromformer_jax.training import describe_environment

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
