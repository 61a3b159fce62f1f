"""Kills real jobs at random moments, resumes them, and compares with a job that was never killed.

    python -m tests.faults.kill_points training --kills 100 --seed 0 --out results/faults/training-seed0.json

Three jobs: training (with evaluations, saves and the result), preparation of data, and a report.
After every kill the latest checkpoint is checked against its hashes, and must not be an older one than
before; a job that got to its end must have left the same bytes.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import multiprocessing
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tests.faults.jobs import JOBS, PHASES, Job, run_quietly

START_SECONDS = 3.0  # from the fork to the first step, compilation included


@dataclasses.dataclass
class Tally:
    """The outcome of killing one job."""

    kills: int = 0
    kills_in: dict[str, int] = dataclasses.field(default_factory=dict)
    finished: int = 0
    differing: int = (
        0  # finished jobs whose bytes differ from those of the job that was never killed
    )
    lost_steps: int = 0  # most steps that a kill set the latest checkpoint back
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.finished > 0 and self.differing == self.lost_steps == 0


def kill_at_random(job: Job, kills: int, folder: Path, seed: int = 0) -> Tally:
    """Kills `job` the given number of times, over as many runs as needed; the last run finishes.

    Raises:
      AssertionError: a job failed by itself.
      CheckpointDamaged: a kill left one.
    """
    context = multiprocessing.get_context("forkserver")  # one import of jax for all processes
    context.set_forkserver_preload(["tests.faults.jobs", "tests.training.tiny"])
    moments, tally, began = random.Random(seed), Tally(), time.monotonic()

    def start(into: Path):
        into.mkdir(exist_ok=True)
        phase = context.RawValue("i", 0)
        process = context.Process(target=run_quietly, args=(job.do, into, phase))
        process.start()
        return process, phase

    def finish(into: Path) -> float:
        """Returns the seconds from the beginning of the work."""
        process, phase = start(into)
        while not phase.value and process.is_alive():
            time.sleep(0.002)
        began = time.monotonic()
        process.join()
        assert process.exitcode == 0, f"{into}: the job ended with {process.exitcode}"
        return time.monotonic() - began

    whole_seconds = finish(folder / "never")
    expected = job.result(folder / "never")

    def compare(into: Path) -> None:
        tally.finished += 1
        tally.differing += job.result(into) != expected
        shutil.rmtree(into)

    run = 0
    while tally.kills < kills:
        into = folder / str(run)
        saved = job.saved(into)
        process, phase = start(into)
        if moments.random() < job.start_share:
            process.join(moments.uniform(0, START_SECONDS))
        else:
            while not phase.value and process.is_alive():
                time.sleep(0.002)
            within = job.kill_within_seconds or 0.4 * whole_seconds  # several kills a run
            process.join(moments.uniform(0, within))
        if process.is_alive():
            process.kill()
            process.join()
        if process.exitcode == 0:
            compare(into)
            run += 1
            continue
        assert process.exitcode == -9, f"{into}: the job ended with {process.exitcode}"
        tally.kills += 1
        saving = any(into.glob("checkpoints/*.orbax-checkpoint-tmp*"))
        where = "save" if saving else PHASES[phase.value]
        tally.kills_in[where] = tally.kills_in.get(where, 0) + 1
        tally.lost_steps = max(tally.lost_steps, saved - job.saved(into))
        if tally.kills % 20 == 0:
            print(dataclasses.asdict(tally), flush=True)
    finish(folder / str(run))
    compare(folder / str(run))
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # As in the runners, so that some kills happen while it is written.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/xla"
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        tally = kill_at_random(JOBS[given.job], given.kills, Path(folder), given.seed)
    found = {
        "command": f"python -m tests.faults.kill_points {given.job} --kills {given.kills}"
        f" --seed {given.seed}",
        "versions": {
            "python": platform.python_version(),
            **{
                package: importlib.metadata.version(package)
                for package in ("jax", "orbax-checkpoint", "numpy", "matplotlib")
            },
        },
        **dataclasses.asdict(tally),
    }
    print(json.dumps(found, indent=2))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
