"""A folder that cannot be written, in a sentence, whoever found out: Python, Orbax or its storage."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

__all__ = ["CannotWrite", "writing_to"]

_REASONS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}


class CannotWrite(OSError):
    """A full disk, or a folder that is not ours to write to."""


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Turns what comes of a full disk or a read-only folder into `CannotWrite`.

    Errors that name a file elsewhere pass as they are, and so does a failing disk that names none.
    """
    try:
        yield
    except CannotWrite:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = _reason(error, folder)
        if reason is None:
            raise
        raise CannotWrite(
            f"{folder} cannot be written ({os.strerror(reason)}): make space, or make it writable."
            " What was saved before is whole, and the same command goes on from there."
        ) from error


def _reason(error: Exception, folder: Path) -> int | None:
    if isinstance(error, OSError):
        if error.filename is None:
            ours = error.errno != errno.EIO  # which reading the data can bring, too
        else:
            ours = Path(os.fsdecode(error.filename)).is_relative_to(folder)
        return error.errno if error.errno in _REASONS and ours else None
    # The storage below Orbax raises ValueErrors with the system's number in their text.
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found and int(found[1]) in _REASONS else None
