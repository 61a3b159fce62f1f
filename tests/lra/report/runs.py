"""Handmade runs: folders as `run_lra.py` leaves them, without any training."""

from lra.report.groups import group, read
from tests.reporting.handmade import write, write_lines

FIVE = ("listops", "text", "retrieval", "image", "pathfinder32")
RESULT = {
    "test_examples": 2000,
    "valid_accuracy": 0.25,
    "step_seconds": 0.9757,
    "examples_per_second": 32.8,
    "peak_bytes": 3 * 2**30,
    "parameters": 199_882,
    "versions": {"jax": "0.10.2"},
    "device": {"kind": "cpu", "count": 1},
    "cpu_threads": 2,
    "config_sha256": "c0ffee" * 10,
    "baselines": {"constant answer": 0.172, "first token alone": 0.3565},
}


def write_run(
    folder,
    *,
    task="listops",
    attention=None,
    seed=3,
    accuracy=0.36,
    finished=True,
    partial=False,
    steps=(10, 20),
    config=None,
    result=None,
    step_seconds=None,
    recipe="paper",
    label=None,
):
    """Writes a run; `config` has sections over the handmade ones, `result` values (None takes a key out).

    With `step_seconds` it has a `speed.jsonl`. The label is the attention with its landmarks.
    """
    attention = attention or {"name": "nystrom", "num_landmarks": 64}
    landmarks = [attention["num_landmarks"]] if "num_landmarks" in attention else []
    sections = {
        "label": label or "-".join(map(str, [attention["name"], *landmarks])),
        "recipe": recipe,
        "command": f"python run_lra.py --config=configs/{task}.py --config.train.seed={seed}",
        "hashes": {"sha256": "da7a" * 16},
        "data": {"task": task, "max_len": 2048},
        "attention": attention,
        "model": {} if recipe == "paper" else {"block": recipe},
        "train": {"seed": seed, "batch_size": 32, "total_steps": steps[-1]},
    }
    lines = [{"step": step, "train/loss": 2.0, "train/accuracy": 0.2} for step in steps]
    lines += [{"step": step, "valid/loss": 2.1, "valid/accuracy": 0.25} for step in steps]
    last = {"best_step": steps[-1], "total_steps": steps[-1]}
    values = {"task": task, "test_accuracy": accuracy, **last, **RESULT, "partial": partial}
    values |= result or {}
    write(folder, sections, values if finished else None, lines, config=config)
    if step_seconds is not None:
        write_speed(folder, [(step, step_seconds) for step in steps])
    return folder


def write_diverged(folder, step=12, **values):
    """Writes a run whose loss became NaN."""
    unknown = dict.fromkeys([*RESULT, "best_step", "total_steps"])
    result = {**unknown, "state": "diverged", "step": step}
    return write_run(folder, accuracy=None, result=result, **values)


def write_speed(folder, timed):
    """Writes a `speed.jsonl` of steps and the seconds of each step up to them."""
    lines = [{"step": step, "step_seconds": seconds} for step, seconds in timed]
    write_lines(folder / "speed.jsonl", lines)


def write_seeds(folder, accuracies, **values):
    """Writes a run for each accuracy, of the seeds 0, 1, …"""
    for seed, accuracy in enumerate(accuracies):
        write_run(folder / f"seed{seed}", seed=seed, accuracy=accuracy, **values)
    return folder


def groups_in(*folders):
    """The groups of all runs below `folders`."""
    return group(read(folders)[0])
