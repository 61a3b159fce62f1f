"""What a run that ends in an error tells the shell."""

import errno

from nystromformer_jax.training.hosts import ProcessLost, RefusedElsewhere
from nystromformer_jax.training.integrity import CheckpointDamaged
from nystromformer_jax.training.loop import LossNotFinite
from nystromformer_jax.training.stop import Interrupted
from nystromformer_jax.training.workdir import DataGone, WorkdirBusy
from nystromformer_jax.training.writing import CannotWrite

__all__ = ["exit_code_of"]

_FAILED = (CannotWrite, CheckpointDamaged, DataGone, LossNotFinite, ProcessLost, TimeoutError)
_REFUSED = (
    ValueError,
    ImportError,
    WorkdirBusy,
    # What is at a path, or is not: another path helps.
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_NO_PATH = (errno.ELOOP, errno.ENAMETOOLONG)


def exit_code_of(error: Exception) -> int | None:
    """The exit code of a run that ended in an error; None where the error is a fault of the code.

    - 1: the run failed, by a full or broken disk, a loss that is not finite, the loss of another process.
      When that is mended, the same command goes on.
    - 2: the command was refused, and needs another value, file or folder.
    - 128 and more: a signal ended it.
    """
    if isinstance(error, Interrupted | RefusedElsewhere):
        return error.exit_code
    if isinstance(error, _FAILED):
        return 1
    if isinstance(error, _REFUSED):
        return 2
    if isinstance(error, OSError):
        # Without the system's number it is a sentence of ours about a file, or Python's about an archive.
        return 2 if error.errno in (None, *_NO_PATH) else 1
    return None
