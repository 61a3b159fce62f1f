"""Runs a program in N processes on this machine, to simulate several hosts on a CPU.

    python launch/local.py 2 run_lra.py --config=configs/listops.py --workdir=runs/two

Output lines are prefixed with the number of the process. Ctrl-C and SIGTERM are forwarded to all processes,
which stop at the same step; a second signal kills them. When a process fails, the others are stopped after a
short time. The exit code is that of the first process that failed.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO

POLL_SECONDS = 0.1
# After a failure, the other processes have 2 s to exit before SIGTERM, and then 60 s before SIGKILL, because
# they may only stop once they detect the lost process.
ALONE_SECONDS, STOPPING_SECONDS = 2, 60


def main(arguments: list[str]) -> int:
    """Starts the processes, prints their output and returns the exit code."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments[0].isdecimal() or not int(arguments[0]):
        wanted = "the first argument is the number of processes, 1 or more"
        print(f"local.py: {wanted}; got {arguments[0]!r}", file=sys.stderr)
        return 2
    count, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []  # received signals; handled in `_wait`, after all processes are started
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda number, frame: signals.append(number))
    coordinator = f"127.0.0.1:{_free_port()}"
    # NPROC sets the number of XLA's CPU threads; a collective needs one per device.
    environment = {"NPROC": "16", **os.environ, "PYTHONUNBUFFERED": "1"}
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                *command,
                f"--coordinator={coordinator}",
                f"--num_processes={count}",
                f"--process_id={number}",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",  # an undecodable byte must not stop the printing
            start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which forwards it
        )
        for number in range(count)
    ]
    codes: list[int] = []  # exit codes, in the order in which the processes end
    with ThreadPoolExecutor(2 * count) as pool:
        for number, process in enumerate(processes):
            _print(f"[{number}] started as process {process.pid}\n")
            pool.submit(_print_lines, number, process.stdout)
            pool.submit(lambda process: codes.append(process.wait()), process)
        code = _wait(processes, codes, signals)
    # As in a shell, the exit code of a process killed by a signal is 128 plus the signal.
    return code if code >= 0 else 128 - code


def _wait(processes: list[subprocess.Popen[str]], codes: list[int], signals: list[int]) -> int:
    """Waits for all processes, stops them after a failure or signal; returns the first nonzero code."""
    sent, failed = 0, math.inf
    while len(codes) < len(processes):
        if any(codes):
            failed = min(failed, time.monotonic())
        alone = time.monotonic() - failed
        due = (alone > ALONE_SECONDS) + (alone > ALONE_SECONDS + STOPPING_SECONDS)
        if sent < max(due, min(len(signals), 2)):
            for process in processes:
                process.send_signal((signal.SIGTERM, signal.SIGKILL)[sent])
            sent += 1
        time.sleep(POLL_SECONDS)
    return next(filter(None, codes), 0)


def _print_lines(number: int, stream: IO[str] | None) -> None:
    for line in stream or ():  # to the end, because a process blocks once its pipe is full
        _print(f"[{number}] {line}")


def _print(text: str) -> None:
    try:
        print(text, end="", flush=True)
    except OSError:  # the reader, for example `head`, has exited, or the disk is full
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
