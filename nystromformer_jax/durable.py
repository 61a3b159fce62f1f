"""Files that are there whole or not at all, through a crash, a full disk and a power loss alike."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def written(path: Path, write: Callable[[Path], object]) -> Iterator[Callable[[], None]]:
    """Writes a file under another name, to the disk; calling what is given gives it its own.

    Not called, nothing is left of it.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)

    def give_name() -> None:
        temporary.replace(path)
        _sync(path.parent)  # the name itself

    try:
        write(temporary)
        _sync(temporary)
        temporary.chmod(0o644)  # mkstemp's 0600 is for secrets
        yield give_name
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object."""
    text = json.dumps(dict(values), indent=2) + "\n"
    with written(path, lambda temporary: temporary.write_text(text, encoding="utf-8")) as give_name:
        give_name()


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      FileNotFoundError: There is no such file.
      ValueError: It holds anything else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged, it is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, not a {type(found).__name__}.")
    return found


def _sync(path: Path) -> None:
    """Waits until the disk has a file, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
