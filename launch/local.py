"""Starts N processes of a runner on this machine, as one run: to try out what a pod will do, on CPUs.

    python launch/local.py 2 run_lra.py --config=configs/listops.py --workdir=runs/two

Every line of a process is printed behind its number. Ctrl-C and SIGTERM go to all of them, and they
stop together at the same step; the exit code is the first process's that was not 0.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import IO


def main(arguments: list[str]) -> int:
    """Starts, prints and waits; returns the exit code."""
    if len(arguments) < 2 or not arguments[0].isdigit() or not int(arguments[0]):
        print(__doc__, file=sys.stderr)
        return 2
    count, command = int(arguments[0]), arguments[1:]
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
    printers = [
        threading.Thread(target=_print_lines, args=(number, process.stdout))
        for number, process in enumerate(processes)
    ]
    for printer in printers:
        printer.start()

    def pass_on(number: int, frame: object) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGINT, pass_on)
    signal.signal(signal.SIGTERM, pass_on)
    codes = [process.wait() for process in processes]
    for printer in printers:
        printer.join()
    wrong = [code for code in codes if code]
    # As a shell has it: a process that a signal ended counts as 128 and the signal.
    return 0 if not wrong else wrong[0] if wrong[0] > 0 else 128 - wrong[0]


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
