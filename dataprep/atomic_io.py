"""Atomic, durable writing of files."""

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, content: bytes | bytearray) -> None:
    """Writes a file atomically: to a temporary file beside it, synced to disk, then renamed.

    Raises:
      OSError: The file cannot be written. An existing file is unchanged and nothing is left behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp creates files with mode 0600
        temporary.replace(path)
    except BaseException:  # includes KeyboardInterrupt
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)  # makes the new name durable


def fsync(path: Path) -> None:
    """Flushes a file, or the directory entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
