"""Checks, timings and runs of the benchmark on an accelerator, in pieces of a few minutes.

    python -m benchmarks.accelerator --out FOLDER --minutes 9 --data_dir DATA

Repeat the command until nothing is left. Each piece continues where the last one stopped, in this order:

1. `benchmarks.on_device`: correctness, attention and training steps, in FOLDER/results.json.
2. The paper's runs of ListOps, Text, Image and Pathfinder with seed 0, in FOLDER/TASK. A run that a piece
   stops saves its state first.

DATA has the files of Text and Image, see docs/data.md. ListOps and Pathfinder generate their data once.
`--toy` tries everything at a tiny size, for example on a CPU, in FOLDER/toy.
"""

import argparse
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks import on_device
from command import parser_of, run_to_end
from nystromformer_jax.durable import read_json
from reporting.writer import path_argument

ROOT = Path(__file__).parent.parent
TASKS = ("listops", "text", "image", "pathfinder")
DOWNLOADED = ("text", "image")  # tasks that need --data_dir
# No process starts with less time left: on an H200, a training step took 190 s to compile.
START_SECONDS = 240
SAVE_SECONDS = 20  # kept at the end of a piece for a run to save its state


class Job(NamedTuple):
    """A command that a piece runs, unless `missing` says what it needs first."""

    name: str
    command: list[str]
    missing: str = ""


def main() -> int:
    """Runs a piece and returns the exit code, which is 1 if a check or a command failed."""
    parser = parser_of("benchmarks.accelerator", __doc__)
    parser.add_argument("--out", type=path_argument, required=True, help="folder of all results")
    parser.add_argument("--minutes", type=float, default=math.inf, help="time limit of this piece")
    parser.add_argument(
        "--data_dir", type=path_argument, help="folder with the files of Text and Image"
    )
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to try the program")
    given = parser.parse_args()
    if not 60 * given.minutes >= START_SECONDS + SAVE_SECONDS:  # also for NaN
        parser.error(f"--minutes must be {(START_SECONDS + SAVE_SECONDS) / 60:.2g} or more")
    if given.toy:
        given.out /= "toy"
    return run_to_end("benchmarks.accelerator", lambda: int(not run_piece(given)))


def run_piece(given: argparse.Namespace) -> bool:
    """Runs what is left until the time is over, and prints the state; returns False after a failure."""
    end = time.monotonic() + 60 * given.minutes - SAVE_SECONDS
    failed = {}
    try:
        for job in jobs(given):
            if job.missing or end - time.monotonic() < START_SECONDS:
                continue
            print(f"--- {shlex.join(job.command)}", flush=True)
            code = run(job.command, end - time.monotonic())
            if code:
                failed[job.name] = f"exit code {code}, see above"
    except (KeyboardInterrupt, SystemExit):  # the same as the end of the piece
        print("stopped", flush=True)
    rows = on_device.read_rows(given.out)
    print(f"\ndone: {'; '.join(_done(given.out, rows)) or 'nothing'}")
    left = [
        job.name + "".join(f" ({why})" for why in (failed.get(job.name), job.missing) if why)
        for job in jobs(given)
    ]
    if left:
        print(f"left: {', '.join(left)}")
        print(f"next: {shlex.join(['python', '-m', 'benchmarks.accelerator', *sys.argv[1:]])}")
    wrong = [row for part in rows.values() for row in part if not on_device.is_right(row)]
    for row in wrong:
        print(f"failed: {row}")
    return not (failed or wrong)


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """Yields the jobs that are left."""
    out = given.out.absolute()
    toy = ["--toy"] if given.toy else []
    if on_device.missing(on_device.read_rows(out), given.toy):
        yield Job("timings", [sys.executable, "-m", "benchmarks.on_device", f"--out={out}", *toy])
    for task in TASKS[:1] if given.toy else TASKS:
        if (out / task / "result.json").is_file():
            continue
        program = [sys.executable, "run_lra.py", f"--config=configs/{task}.py"]
        flags = [f"--workdir={out / task}"]
        if given.toy:
            flags += [f"--config.{key}={value}" for key, value in on_device.TOY.items()]
        if task in DOWNLOADED and given.data_dir:
            flags.append(f"--config.data.dir={given.data_dir.absolute()}")
        missing = "pass --data_dir" if task in DOWNLOADED and not given.data_dir else ""
        yield Job(task, [*program, *flags], missing)


def run(command: list[str], seconds: float) -> int | None:
    """Runs a command for at most `seconds` and returns its exit code, or None if it had to be stopped."""
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        return process.wait(None if math.isinf(seconds) else seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, so that the process saves its state, and SIGKILL after `SAVE_SECONDS`."""
    process.terminate()
    try:
        process.wait(SAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _done(out: Path, rows: dict[str, on_device.Rows]) -> Iterator[str]:
    """Yields what exists: rows of each part, and the state of each run."""
    for part, known in rows.items():
        if known:
            yield f"{len(known)} rows of {part}"
    for task in TASKS:
        result = out / task / "result.json"
        if result.is_file():
            accuracy = read_json(result).get("test_accuracy", math.nan)  # NaN: the run diverged
            yield f"{task}, test accuracy {100 * accuracy:.2f} %"
        elif saved := [file.name for file in (out / task / "checkpoints").glob("*[0-9]")]:
            total = read_json(out / task / "config.json")["train"]["total_steps"]
            yield f"{task} to step {max(map(int, filter(str.isdigit, saved)), default=0)} of {total}"


if __name__ == "__main__":
    sys.exit(main())
