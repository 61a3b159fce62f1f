"""Exit codes of errors: 1 for a failed run, 2 for an invalid command, 128 and more for a signal."""

import errno
import gzip
import signal

import pytest

from nystromformer_jax.training import (
    CannotWrite,
    CheckpointDamaged,
    ConfigDiffers,
    DataGone,
    Interrupted,
    LossNotFinite,
    ProcessLost,
    RemoteError,
    WorkdirBusy,
    exit_code_of,
)
from nystromformer_jax.training.errors import needed_temporaries


def os_error(number):
    """An OSError as Python raises it, of the subclass for its errno."""
    return OSError(number, "what the system says", "a/file")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CannotWrite("a full disk"), 1),
        (CheckpointDamaged("no whole one is left"), 1),
        (LossNotFinite("in step 3"), 1),
        (ProcessLost("process 1"), 1),
        (DataGone("before the end"), 1),
        (RemoteError("a full disk", 1), 1),
        (RemoteError("another config", 2), 2),
        (os_error(errno.EIO), 1),
        (os_error(errno.ENOSPC), 1),
        (TimeoutError("of Orbax, whose clock jumped"), 1),
        (ValueError("a wrong value"), 2),
        (ConfigDiffers("another config"), 2),
        (WorkdirBusy("another process"), 2),
        (ImportError("a package"), 2),
        (FileNotFoundError("no data"), 2),
        (os_error(errno.EACCES), 2),
        (os_error(errno.ENAMETOOLONG), 2),
        (OSError("a/file cannot be read (Permission denied)."), 2),
        (gzip.BadGzipFile("no archive"), 2),
        (Interrupted(signal.SIGTERM, 3, 7), 143),
        (KeyError("ours"), None),
    ],
)
def test_exit_codes_of_errors(error, code):
    assert exit_code_of(error) == code


def test_an_out_of_memory_message_reports_the_temporaries():
    message = "the total memory required for HLO temporaries (1.50G) exceeds available HBM (1.00G)."
    assert needed_temporaries(message) == 3 * 2**29
    assert needed_temporaries("too much") is None
