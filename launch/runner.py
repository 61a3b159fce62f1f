"""Runs jobs on this machine, several at once, each in its own process with its own accelerator or cores."""

import contextlib
import glob
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from cli.commands import message_of
from launch.jobs import Job, due_tests, is_diverged, read_jobs, unfinished
from launch.log import STOPPED, failure, open_log, write_exit_code
from launch.status import best_of, log_of, state_of, table

POLL_SECONDS = 0.1


class _Running(NamedTuple):
    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class Queue:
    """Runs the `jobs` of `folder`: one at a time in each of the `workers`, which are environment variables.

    A single worker's output is also printed. The first SIGTERM or Ctrl-C is forwarded to all runs, which save
    and end; the second kills them.
    """

    def __init__(
        self, folder: Path, jobs: Sequence[Job], workers: Sequence[Mapping[str, str]]
    ) -> None:
        self._folder, self._jobs, self._workers = folder, jobs, workers
        self._running: dict[int, _Running] = {}  # by worker
        self._all_done = True
        self._untested: set[str] = set()  # configs with an unreadable result
        self._signals: list[int] = []
        self._printed = 0  # bytes of the single worker's log

    def run(self, todo: Sequence[Job]) -> int:
        """Runs the jobs, then `due_tests`; a failure does not stop the others.

        Returns:
          0 if all are done or diverged, 1 if any failed or was stopped, and 128 plus the signal's number if a
          signal stopped the queue.
        """
        waiting = deque(dict.fromkeys([*todo, *self._due_tests()]))
        known = set(waiting)
        handlers = {number: signal.signal(number, self._on_signal) for number in _STOP}
        try:
            while self._running or (waiting and not self._signals):
                num_waiting = len(waiting)
                for worker in range(len(self._workers)):
                    if worker not in self._running and not self._signals:
                        self._start_next(worker, waiting)
                time.sleep(POLL_SECONDS)
                self._print_output()
                # A job that does not wait any more was started here or finished by another process.
                if self._collect() or len(waiting) < num_waiting:
                    new = [job for job in self._due_tests() if job not in known]
                    waiting.extend(new)
                    known.update(new)
        finally:
            self.stop()
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 128 + self._signals[0] if self._signals else int(not self._all_done)

    def stop(self) -> None:
        """Sends SIGTERM to all runs and waits until they have saved and ended."""
        for running in self._running.values():
            running.process.terminate()
        while self._running:
            time.sleep(POLL_SECONDS)
            self._collect()

    def _due_tests(self) -> list[Job]:
        """Returns `due_tests`, also with the values that another sweep has added to the file."""
        with contextlib.suppress(OSError, ValueError):  # no file, or one that is being edited
            self._jobs = read_jobs(self._folder)
        due = []
        for config in dict.fromkeys(job.config for job in self._jobs):
            try:
                due += due_tests([job for job in self._jobs if job.config == config])
            except (OSError, ValueError) as error:  # an invalid result, perhaps of another queue
                if config not in self._untested:
                    _print(f"The test set of {config} is not evaluated: {message_of(error)}")
                self._untested.add(config)
                self._all_done = False
        return due

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals.append(number)
        for running in self._running.values():
            running.process.send_signal(
                signal.SIGTERM if len(self._signals) == 1 else signal.SIGKILL
            )

    def _start_next(self, worker: int, waiting: deque[Job]) -> None:
        """Starts the first waiting job that no other process runs."""
        for _ in range(len(waiting)):
            job, log = waiting.popleft(), None
            try:
                log = open_log(log_of(self._folder, job))
                if log is None:
                    waiting.append(job)
                elif not job.is_finished:  # by another sweep, while this one waited
                    process = self._launch(worker, job, log)
                    self._running[worker] = _Running(job, process, log)
                    if self._signals:  # received while the process was started
                        process.terminate()
                    return
            except (OSError, ValueError) as error:
                self._end(job, f"failed: {message_of(error)}")
            if log is not None:
                log.close()

    def _launch(self, worker: int, job: Job, log: IO[bytes]) -> subprocess.Popen[bytes]:
        program, *arguments = job.command
        _say(job, "started")
        self._printed = log.tell()
        return subprocess.Popen(
            [sys.executable if program == "python" else program, *arguments],
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._workers[worker]},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a terminal's Ctrl-C reaches only the sweep, which forwards it
        )

    def _collect(self) -> bool:
        """Records the runs that have ended; returns True if there are any."""
        ended = [(worker, r) for worker, r in self._running.items() if r.process.poll() is not None]
        for worker, (job, process, log) in ended:
            code, error = process.returncode, None
            self._print_output(is_end=True)
            del self._running[worker]
            try:
                write_exit_code(log, code)
            except OSError as full:
                error = f"{log.name} cannot be written ({full.strerror}): free some space, then start again"
            log.close()
            try:
                result = job.result
                if job.is_finished and (code == 0 or (result and is_diverged(result))):
                    _say(job, " ".join(state_of(self._folder, job)[:2]))
                elif code in STOPPED:
                    self._end(job, "stopped; the same command resumes it")
                else:
                    error = error or failure(log_of(self._folder, job))
                    self._end(job, f"failed: {error or 'ended without a result'}")
            except (OSError, ValueError) as unreadable:
                self._end(job, f"failed: {message_of(unreadable)}")
        return bool(ended)

    def _print_output(self, *, is_end: bool = False) -> None:
        """Prints the new whole lines of the single worker's log, or at its end all that is new."""
        if len(self._workers) > 1:
            return
        for running in self._running.values():
            with Path(running.log.name).open("rb") as log:
                log.seek(self._printed)
                new = log.read()
            if not is_end:
                new = new[: new.rfind(b"\n") + 1]
            self._printed += len(new)
            if new:
                _print(new.decode(errors="replace").removesuffix("\n"))

    def _end(self, job: Job, text: str) -> None:
        self._all_done = False
        _say(job, text)


_STOP = (signal.SIGINT, signal.SIGTERM)


def _say(job: Job, text: str) -> None:
    _print(f"{job.name}: {text}")


def _print(text: str) -> None:
    with contextlib.suppress(OSError):  # the output is closed, or on a full disk
        print(text, flush=True)


def run_all(
    folder: Path,
    jobs: Sequence[Job],
    workers: Sequence[Mapping[str, str]],
    program: str,
    *,
    chooses: bool = False,
) -> int:
    """Runs what is unfinished in `folder`, prints the table of all jobs, and returns the exit code.

    The exit code is that of `Queue.run`; `program` is named in messages. With `chooses`, the setting that is
    best on the validation set is named, though all runs evaluate the test set.
    """
    todo = unfinished(jobs)
    code = Queue(folder, jobs, workers).run(todo) if todo else 0
    if code > 128:
        print(f"{program}: stopped; the same command resumes", file=sys.stderr)
    else:
        _print("\n".join([table(folder, jobs)[0], *(best_of(jobs) if chooses else [])]))
    return code


def environments(workers: int) -> list[dict[str, str]]:
    """Returns the environment variables of each worker; 0 workers: one per accelerator, or one on a CPU.

    With more workers than accelerators, workers share an accelerator and its memory. Without accelerators,
    workers share the CPU's cores, unless the user set NPROC.
    """
    devices = accelerators()
    workers = workers or len(devices) or 1
    if not devices and "NPROC" in os.environ:
        return [{} for _ in range(workers)]
    if not devices:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return [{"NPROC": str(max(1, (cores or 1) // workers))} for _ in range(workers)]
    share = -(-workers // len(devices))
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / share:.2f}"} if share > 1 else {}
    return [{**devices[worker % len(devices)], **memory} for worker in range(workers)]


def accelerators() -> list[dict[str, str]]:
    """Returns the environment variables that select each visible GPU or, without GPUs, each TPU chip."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    gpus = _visible("CUDA_VISIBLE_DEVICES", "/dev/nvidia[0-9]*")
    chips = _visible("TPU_VISIBLE_CHIPS", "/dev/accel[0-9]*")
    one = {"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1", "TPU_PROCESS_BOUNDS": "1,1,1"}
    return [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus] or [
        {"TPU_VISIBLE_CHIPS": chip, **one} for chip in chips
    ]


def _visible(variable: str, pattern: str) -> list[str]:
    """Returns the device numbers in an environment variable or, if it is not set, of the files in /dev."""
    if variable in os.environ:
        return [item for item in os.environ[variable].split(",") if item and item != "-1"]
    return [str(number) for number in range(len(glob.glob(pattern)))]
