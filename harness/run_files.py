"""The JSON files of a run's folder, read by whoever reports on it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

Kind = Literal["a number", "a whole number", "a text", "an object"]
_TYPES: Mapping[Kind, Any] = {
    "a number": int | float,
    "a whole number": int,
    "a text": str,
    "an object": dict,
}


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
      ValueError: The file holds something else.
    """
    try:
        values = json.loads(file.read_bytes())
    except ValueError as error:  # JSON's and UTF-8's
        raise ValueError(f"{file} cannot be read as JSON: {error}.") from None
    if not isinstance(values, dict):
        raise ValueError(f"{file} must hold a JSON object, not a {type(values).__name__}.")
    return values


def check_kinds(file: Path, values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Refuses what a file has under a key of `kinds`, if it is of another kind.

    Raises:
      ValueError: The file, the key, and what is there.
    """
    for key, kind in kinds.items():
        if key in values and not _is_of(kind, values[key]):
            raise ValueError(f"{file}: {key} must be {kind}, not {values[key]!r}.")


def _is_of(kind: Kind, value: Any) -> bool:
    return isinstance(value, _TYPES[kind]) and not isinstance(value, bool)


def read_metrics(file: Path) -> list[dict[str, float]]:
    """The lines of a `metrics.jsonl`; a last line that was cut as it was written is left out.

    Raises:
      ValueError: Another line cannot be understood.
    """
    lines = file.read_bytes().splitlines()
    values = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
            if not isinstance(value, dict) or not _is_of("a whole number", value.get("step")):
                raise ValueError("an object with a step is needed")
            for key, number in value.items():
                if not _is_of("a number", number):
                    raise ValueError(f"{key} is {number!r}, and a number is needed")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(
                f"{file}, line {number}, cannot be read as metrics: {error}."
            ) from None
        values.append(value)
    return values


def finite(value: Any) -> Any:
    """The same values with None for every number that JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown(folder: Path) -> str:
    """A folder's path from here if it lies below, else its whole path: for people, on any machine."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
