"""The log of a job, `logs/NAME.log`: the output of its process, a lock while it runs, and its exit codes.

The processes of a job inherit the lock, so it is held until they end, even if the sweep itself was killed.
"""

import fcntl
import re
import signal
from pathlib import Path
from typing import IO

MARK = "[run_sweep] exit code "
STOPPED = {130, 143, -signal.SIGINT, -signal.SIGTERM}  # exit codes of runs that can be resumed
TAIL_BYTES = 10_000


def open_log(file: Path) -> IO[bytes] | None:
    """Opens a log for appending and locks it; returns None if a process of the job still runs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    log = file.open("ab", buffering=0)
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.close()
        return None
    return log


def is_running(file: Path) -> bool:
    """Returns True if a process of the job runs."""
    if not file.is_file():
        return False
    with file.open("rb") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def write_exit_code(log: IO[bytes], code: int) -> None:
    """Appends the exit code of the job's process; raises OSError if the disk is full."""
    log.write(f"\n{MARK}{code}\n".encode())


def failure(file: Path) -> str | None:
    """Returns a sentence about the failure of the last start; None if it did not fail."""
    if not file.is_file():
        return None
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - TAIL_BYTES))
        lines = re.split(r"[\r\n]+", log.read().decode(errors="replace").strip())
    if not lines[-1].startswith(MARK):
        return None
    code = int(lines[-1].removeprefix(MARK))
    if code == 0 or code in STOPPED:
        return None
    before = lines[-2].strip() if len(lines) > 1 and MARK not in lines[-2] else ""
    if code > 0:
        return before or f"exit code {code}"
    last = f"; the last line of its log: {before}" if before else ""
    return f"killed by {signal.Signals(-code).name}{last}"
