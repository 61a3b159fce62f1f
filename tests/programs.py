"""Calls the programs of the repository in this process or in separate ones."""

import contextlib
import importlib
import io
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 300  # time limit of a call


class Answer(NamedTuple):
    """Exit code, output and errors of a call of a program."""

    code: object
    output: str
    errors: str


def call(name, *arguments):
    """Runs a program in this process. Needs the fixture `in_repository`."""
    program = importlib.import_module(name)
    output, errors = io.StringIO(), io.StringIO()
    argv, sys.argv = sys.argv, [f"{name}.py", *map(str, arguments)]
    alarm = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(SECONDS)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            warnings.catch_warnings(),
        ):
            code = program.main()
    except SystemExit as stop:
        code = stop.code
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, alarm)
        sys.argv = argv
    return Answer(code, output.getvalue(), errors.getvalue())


def _hangs(number, frame):
    raise TimeoutError(f"no answer after {SECONDS} s")


def assert_refused(answer, program, *words):
    """Requires exit code 2 and one line that begins with the program's name and has all `words`."""
    assert (answer.code, answer.output) == (2, ""), answer
    assert answer.errors.startswith(f"{program}.py: "), answer
    assert answer.errors.count("\n") == 1, answer
    assert all(word in answer.errors for word in words), (words, answer)


def start(*words, **environment):
    """Starts Python in the repository with one device; `environment` is added to this process's."""
    kept = {name: x for name, x in os.environ.items() if name not in ("XLA_FLAGS", "NPROC")}
    # The flags of conftest.py that shorten compilation.
    flags = os.environ.get("XLA_FLAGS", "").split()
    kept["XLA_FLAGS"] = " ".join(flag for flag in flags if "device_count" not in flag)
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(ROOT), **{name: str(x) for name, x in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_lines(workdir, count, process):
    """Waits until a run's process has written the given number of lines of metrics."""
    metrics = Path(workdir) / "metrics.jsonl"
    deadline = time.monotonic() + SECONDS
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, f"the run ended before it had written {count} lines"
        assert time.monotonic() < deadline, f"{count} lines took more than {SECONDS} s"
        time.sleep(0.005)


def finish(process):
    """Waits for the process to end, with a time limit."""
    try:
        output, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return Answer(process.returncode, output, errors)
