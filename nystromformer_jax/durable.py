"""Atomic, durable files: complete or absent after a crash, a full disk or a power loss."""

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def written(path: Path, write: Callable[[Path], object]) -> Iterator[Callable[[], None]]:
    """Writes a temporary file to disk and yields a function that renames it to `path`.

    The temporary file is deleted if that function is not called.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)

    def rename() -> None:
        temporary.replace(path)
        sync(path.parent)  # makes the new name durable

    try:
        write(temporary)
        sync(temporary)
        temporary.chmod(0o644)  # mkstemp's 0600 is for secrets
        yield rename
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object."""
    write_bytes(path, (json.dumps(dict(values), indent=2) + "\n").encode())


def write_bytes(path: Path, content: bytes | bytearray) -> None:
    """Writes a file: to a temporary file beside it, synced to disk, then renamed.

    Raises:
      OSError: The file cannot be written. An existing file is unchanged, and no temporary file remains.
    """
    with written(path, lambda temporary: temporary.write_bytes(content)) as rename:
        rename()


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      FileNotFoundError: The file does not exist.
      ValueError: The file is not a JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, not a {type(found).__name__}.")
    return found


def sync(path: Path) -> None:
    """Flushes a file, or the directory entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
