"""Starts N processes of a runner on this machine, as one run: to try out what a pod will do, on CPUs.

    python launch/local.py 2 run_lra.py --config=configs/listops.py --workdir=runs/two

Every line of a process is printed behind its number. Ctrl-C and SIGTERM go to all of them, and they
stop together at the same step; a second one kills them. When a process fails the others are stopped
soon after; the exit code is that of the first to fail.
"""

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import IO

POLL_SECONDS = 0.1
# After one failed: so long the others end by themselves, and so long when asked to, which they may not be
# able to answer before they miss the one.
ALONE_SECONDS, ASKED_SECONDS = 2, 60


def main(arguments: list[str]) -> int:
    """Starts, prints and waits; returns the exit code."""
    if len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments[0].isdecimal() or not int(arguments[0]):
        wanted = "the first argument is the number of processes, 1 or more"
        print(f"local.py: {wanted}; got {arguments[0]!r}", file=sys.stderr)
        return 2
    count, command = int(arguments[0]), arguments[1:]
    signals: list[int] = []  # acted on below, when all processes are there
    for wish in (signal.SIGINT, signal.SIGTERM):
        signal.signal(wish, lambda number, frame: signals.append(number))
    coordinator = f"127.0.0.1:{_free_port()}"
    # XLA's CPU threads, of which a collective needs one a device; see README.
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
            start_new_session=True,  # a terminal's Ctrl-C reaches them through this process alone
        )
        for number in range(count)
    ]
    for number, process in enumerate(processes):
        print(f"[{number}] started as process {process.pid}", flush=True)
    codes: list[int] = []  # in the order in which the processes end
    threads = [
        threading.Thread(target=target, args=arguments)
        for number, process in enumerate(processes)
        for target, arguments in (
            (_print_lines, (number, process.stdout)),
            (lambda process: codes.append(process.wait()), (process,)),
        )
    ]
    for thread in threads:
        thread.start()
    code = _wait(processes, codes, signals)
    for thread in threads:
        thread.join()
    # As a shell has it: a process that a signal ended counts as 128 and the signal.
    return code if code >= 0 else 128 - code


def _wait(processes: list[subprocess.Popen[str]], codes: list[int], signals: list[int]) -> int:
    """Waits for all, and ends them where that is due; gives the code of the first to fail, or 0."""
    sent, failed = 0, math.inf
    while len(codes) < len(processes):
        if any(codes):
            failed = min(failed, time.monotonic())
        alone = time.monotonic() - failed
        due = (alone > ALONE_SECONDS) + (alone > ALONE_SECONDS + ASKED_SECONDS)
        if sent < max(due, min(len(signals), 2)):
            for process in processes:
                process.send_signal((signal.SIGTERM, signal.SIGKILL)[sent])
            sent += 1
        time.sleep(POLL_SECONDS)
    return next(filter(None, codes), 0)


def _print_lines(number: int, stream: IO[str] | None) -> None:
    for line in stream or ():
        print(f"[{number}] {line}", end="", flush=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
