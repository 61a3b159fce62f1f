"""The jobs that are killed, each with the result that must have the same bits."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS = 60
STEP_SECONDS = 0.02
# The phases that a job reports by number; a background save is visible in its folder.
PHASES = ("start", "steps", "evaluation", "result", "building", "writing")
REPORTED = ROOT / "results" / "listops-short"


# Batches that are made before the first step: one for its shapes, the others ahead of time.
BATCHES_AHEAD = 5


def says(phase, name, *, after_calls=0):
    """A callback that reports the progress of the job to its watcher."""
    number, calls = PHASES.index(name), iter(range(1_000_000))

    def on_call(*_):
        if next(calls) >= after_calls:
            phase.value = number

    return on_call


def run_quietly(do, folder, phase):
    """The target of a job's process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    if "KILL_POINTS_LOUD" not in os.environ:
        os.dup2(nowhere, 2)
    do(folder, phase)


def train(folder, phase):
    """A complete run: steps, evaluations, saves, and the result from the best checkpoint."""
    from nystromformer_jax.training import Workdir
    from tests.training import tiny

    outcome = tiny.train(
        folder,
        tiny.config(STEPS, events=True),
        training=tiny.examples(
            101, seconds=STEP_SECONDS, on_batch=says(phase, "steps", after_calls=BATCHES_AHEAD)
        ),
        validation=tiny.examples(
            37, seed=1, seconds=STEP_SECONDS, on_batch=says(phase, "evaluation")
        ),
    )
    says(phase, "result")()
    with Workdir(folder, {"train": {"seed": 3}}) as run:
        sha256 = hashlib.sha256(tiny.last_params(folder, outcome.best_step).tobytes()).hexdigest()
        run.write_result(
            {"best_step": outcome.best_step, **outcome.best_metrics, "params_sha256": sha256}
        )


def trained(folder):
    """The results of a finished run, which must have the same bits."""
    from tests.training import tiny

    files = {name: (folder / name).read_bytes() for name in ("metrics.jsonl", "result.json")}
    return {**files, "last": tiny.last_params(folder, STEPS).tobytes()}


def prepare(folder, phase):
    """Generates ListOps data in separate processes."""
    from lra import data

    os.environ["NYSTROMFORMER_JAX_CACHE"] = str(folder)
    config = data.DataConfig(task="listops", examples=1500, max_len=2000, workers=2)
    says(phase, "building")()
    data.load(config)


def prepared(folder):
    """Returns the hashes of the data after checking every file."""
    from dataprep import cache
    from nystromformer_jax.support.durable import sha256_of

    (data,) = (path for path in (folder / "data").iterdir() if path.is_dir())
    cache.check(data)
    return {file.name: sha256_of(file) for file in data.glob("*.npy")}


def report(folder, phase):
    """Writes the report of the runs in results/."""
    from lra.report.__main__ import main

    says(phase, "writing")()
    if main([str(REPORTED), "--out", str(folder / "report")]):
        raise SystemExit(1)


def reported(folder):
    return {file.name: file.read_bytes() for file in folder.glob("report*")}


def intact_step(folder):
    """Returns the latest checkpoint's step, or 0 without one; fails if a kept checkpoint is damaged.

    Kept are the latest two and the best. A kill may leave older ones half deleted.
    """
    from nystromformer_jax.training.integrity import HASHES, require_intact, saved_steps

    checkpoints = folder / "checkpoints"
    steps = saved_steps(checkpoints)
    if not steps:
        return 0
    record = json.loads((checkpoints / str(steps[-1]) / "record" / "metadata").read_text())
    for step in {*steps[-2:], record["best_step"]} - {0}:
        assert (checkpoints / str(step) / HASHES).exists()
        require_intact(checkpoints, step)
    return steps[-1]


def no_saved_step(folder):
    """Returns 0, for jobs without checkpoints."""
    return 0


@dataclasses.dataclass(frozen=True)
class Job:
    """A job, the result that must not change, and the check after each kill."""

    do: Callable[[Path, Any], None]
    result: Callable[[Path], dict[str, Any]]
    saved: Callable[[Path], int] = no_saved_step
    start_share: float = 0.15  # of the kills that may fall before the work begins
    kill_within_seconds: float = 0.0  # after the work begins; 0: two fifths of its duration


JOBS = {
    "training": Job(train, trained, intact_step, kill_within_seconds=1.5),
    "preparation": Job(prepare, prepared),
    "report": Job(report, reported),
}
