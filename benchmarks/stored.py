"""Stored measurements: a JSON file with the settings and the commands of a table, and its rows."""

import importlib.metadata
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launch import huge_pages
from nystromformer_jax.durable import read_json
from nystromformer_jax.training import describe_environment

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions(*packages: str) -> dict[str, str]:
    """Returns the versions of Python and of those of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def this_machine(*packages: str) -> dict[str, Any]:
    """Returns the settings on which times depend: device, processor, threads, pages and versions."""
    environment = describe_environment()
    return {
        "device": environment["device"]["kind"],
        "processor": environment["processor"],
        "cpu_threads": environment["cpu_threads"],
        "huge_pages": huge_pages.in_use(),
        "versions": versions(*(packages or LIBRARIES)),
    }


def command_of(program: str, arguments: Sequence[str] | None = None) -> str:
    """Returns the command line of a program; `arguments` are those of this process by default."""
    words = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", program, *words])


def open_results(file: Path, settings: Mapping[str, Any], *parts: str) -> dict[str, Any]:
    """Returns the results in a file, or results without rows if it does not exist.

    Args:
      file: JSON file.
      settings: Values that all rows share, such as `this_machine()`.
      parts: Names of the lists of rows; "rows" by default.

    Raises:
      ValueError: The file contains something else, or results with different settings.
    """
    parts = parts or ("rows",)
    if not file.is_file():
        return {"settings": dict(settings), "commands": [], **{part: [] for part in parts}}
    results = read_json(file)
    if not {"settings", "commands", *parts} <= results.keys():
        raise ValueError(f"{file} contains another table: pass another --out.")
    there, here = _flat(results["settings"]), _flat(settings)
    differences = [
        f"{name} {there.get(name)} there, {here.get(name)} here"
        for name in sorted(there.keys() | here.keys())
        if there.get(name) != here.get(name)
    ]
    if differences:
        raise ValueError(
            f"{file} contains results with different settings ({'; '.join(differences)}):"
            " pass another --out, or move the file away."
        )
    return results


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {**settings, **settings.get("versions", {}), "versions": None}


def source(results: Mapping[str, Any]) -> str:
    """Returns a sentence with the commands, the machine and the versions."""
    settings = results["settings"]
    commands = ", ".join(f"`{command}`" for command in results["commands"])
    used = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    return f"{commands}: {_machine(settings)}; {used}."


def _machine(settings: Mapping[str, Any]) -> str:
    if settings.get("topology") or "processor" not in settings:
        return "compiled ahead of time, not run"
    device = "" if settings["device"] == "cpu" else f"{settings['device']} beside "
    threads = settings["cpu_threads"]
    pages = ", huge pages" if settings["huge_pages"] else ""
    return f"{device}{settings['processor']}, {threads} thread{'s' * (threads != 1)}{pages}"
