"""Exceptions that end a run, their exit codes, write errors, and out-of-memory errors of JAX."""

import contextlib
import errno
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

from nystromformer_jax.support.durable import CANNOT_WRITE

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CannotWrite(OSError):
    """The disk is full, or the folder is not writable."""


class CheckpointDamaged(OSError):
    """The files of a checkpoint do not match their checksums."""


class ConfigDiffers(ValueError):
    """The run folder was created with a different config or different data."""


class DataGone(FileNotFoundError):
    """The data disappeared during the run. Once they are restored, the same command resumes it."""


class LossNotFinite(RuntimeError):
    """The loss or a gradient became NaN or infinite; `result.json` records it.

    The invalid state is not saved, and the same command does not train again.
    """


class NotFinished(ValueError):
    """The run has no result yet."""


class ProcessLost(RuntimeError):
    """Another process of the run terminated, so the computation cannot continue."""


class WorkdirBusy(RuntimeError):
    """Another process is using the run folder."""


class RemoteError(ValueError):
    """Re-raises the error of another process of the run, with the same message and exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(Exception):
    """A signal ended the run after a save, or an evaluation outside of training if `step` is None.

    `exit_code` is 130 (SIGINT) or 143 (SIGTERM).
    """

    def __init__(self, signal_number: int, step: int | None = None, total_steps: int = 0) -> None:
        self.step = step
        self.exit_code = 128 + signal_number
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        where = f"after step {step} of {total_steps}, everything saved; the same command resumes from there."
        if step is None:
            where = "during an evaluation; the same command repeats it."
        super().__init__(f"Stopped by {name} {where}")


_RUN_FAILED = (CannotWrite, CheckpointDamaged, DataGone, LossNotFinite, ProcessLost, TimeoutError)
_COMMAND_INVALID = (
    ValueError,
    ImportError,
    WorkdirBusy,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_INVALID_PATH = (errno.ELOOP, errno.ENAMETOOLONG)


def exit_code_of(error: Exception) -> int | None:
    """Returns the exit code for an error that ended a run, or None if the error is a bug.

    - 1: The run failed: a full or broken disk, a loss that is not finite, a lost process. After the cause
      is fixed, the same command resumes. A run that diverged needs a different config.
    - 2: The command is invalid: a value, file or folder must be changed.
    - 128 or more: A signal ended the run.
    """
    if isinstance(error, Interrupted | RemoteError):
        return error.exit_code
    if isinstance(error, _RUN_FAILED):
        return 1
    if isinstance(error, _COMMAND_INVALID):
        return 2
    if isinstance(error, OSError):
        # File errors raised by this package, and Python's archive errors, have no errno.
        return 2 if error.errno in (None, *_INVALID_PATH) else 1
    return None


_WRITE_ERRORS = CANNOT_WRITE | {errno.EIO}


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """Converts errors of a full disk or a read-only `folder` to `CannotWrite`.

    Errors about files outside `folder`, and I/O errors without a file name, are not converted.
    """
    try:
        yield
    except CannotWrite:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        code = _write_error(error, folder)
        if code is None:
            raise
        raise CannotWrite(
            f"{folder} cannot be written ({os.strerror(code)}): free some space, or make the folder"
            " writable. Everything saved before is intact, and the same command resumes from there."
        ) from error


def _write_error(error: Exception, folder: Path) -> int | None:
    if isinstance(error, OSError):
        if error.filename is None:
            is_write = error.errno != errno.EIO  # reading the data can raise it too
        else:
            is_write = Path(os.fsdecode(error.filename)).is_relative_to(folder)
        return error.errno if error.errno in _WRITE_ERRORS and is_write else None
    # Orbax's storage layer raises ValueErrors with the errno in the message.
    found = re.search(r"os_error_code='(\d+)'", str(error))
    return int(found[1]) if found and int(found[1]) in _WRITE_ERRORS else None


def is_out_of_memory(error: Exception) -> bool:
    """Returns True if the compiler, a device or the CPU's YNNPACK library ran out of memory."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "YNNPACK operation failed"))


def needed_temporaries(message: str) -> int | None:
    """Returns the bytes of temporaries stated in an out-of-memory message, or None."""
    found = re.search(r"HLO temporaries \(([\d.]+)([KMGT]?)\)", message)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None
