"""Atomic and durable file writes: after a crash or power loss a file is complete or absent."""

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Errors of a full disk or a read-only folder.
CANNOT_WRITE = frozenset(
    {errno.EDQUOT, errno.EFBIG, errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EPERM}
)

# What `config.json` records of a run besides its config and texts, and the files of version 0.2.0.
RECORDS = {"environment": "environment.json", "hashes": "data.json"}


def write_files(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Calls each file's function with a temporary path; renames the files after all are synced to disk.

    Raises:
      OSError: A file cannot be written. Existing files are unchanged, and temporary files are removed.
    """
    with contextlib.ExitStack() as stack:
        temporaries = {path: stack.enter_context(_temporary(path)) for path in files}
        for path, write in files.items():
            write(temporaries[path])
            sync(temporaries[path])
            temporaries[path].chmod(0o644)  # mkstemp creates files with 0600
        for path, temporary in temporaries.items():
            temporary.replace(path)
            sync(path.parent)  # makes the rename durable


def write_bytes(path: Path, content: bytes | bytearray) -> None:
    """Writes bytes to a file atomically; see `write_files`."""
    write_files({path: lambda temporary: temporary.write_bytes(content)})


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object to a file atomically."""
    write_bytes(path, (json.dumps(dict(values), indent=2) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object.

    Raises:
      FileNotFoundError: The file does not exist.
      ValueError: The file is not a JSON object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read as JSON: {error}. Restore it, or move it away."
        ) from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} must contain a JSON object, not a {type(found).__name__}.")
    return found


def read_record(folder: Path) -> dict[str, Any]:
    """Reads the `config.json` of a run, with `RECORDS`, which version 0.2.0 wrote to files of their own."""
    record = read_json(folder / "config.json")
    for name, file in RECORDS.items():
        if name not in record and (folder / file).is_file():
            record[name] = read_json(folder / file)
    return record


def read_config(folder: Path) -> dict[str, Any]:
    """Reads the config of a run, with the texts that say how it was started, but without `RECORDS`."""
    config = read_json(folder / "config.json")
    return {name: value for name, value in config.items() if name not in RECORDS}


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flushes a file, or the directory entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yields a temporary file beside `path`, which is removed at the end unless it was renamed."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)
