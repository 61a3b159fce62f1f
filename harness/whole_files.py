"""Files written whole or not at all, and through to the disk."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes | bytearray) -> None:
    """Writes all of a file or nothing: a temporary one beside it, to the disk, then renamed.

    Raises:
      OSError: It cannot be written. What was there before is still there, and nothing else.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp's 0600 is for secrets
        temporary.replace(path)
    except BaseException:  # Ctrl-C too
        temporary.unlink(missing_ok=True)
        raise
    fsync(path.parent)  # the new name itself


def fsync(path: Path) -> None:
    """Waits until the disk has a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
