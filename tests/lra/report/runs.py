"""Handmade runs: folders as `run_lra.py` leaves them, without any training."""

import json

from lra.report.groups import group, read

TEST_EXAMPLES = 2000
FIVE = ("listops", "text", "retrieval", "image", "pathfinder32")


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
    folder.mkdir(parents=True)
    attention = attention or {"name": "nystrom", "num_landmarks": 64}
    values = {
        "label": label
        or "-".join(map(str, [attention["name"], attention.get("num_landmarks", "")])).rstrip("-"),
        "recipe": recipe,
        "command": f"python run_lra.py --config=configs/{task}.py --config.train.seed={seed}",
        "hashes": {"sha256": "da7a" * 16},
        "data": {"task": task, "max_len": 2048},
        "attention": attention,
        "model": {} if recipe == "paper" else {"block": recipe},
        "train": {
            "seed": seed,
            "batch_size": {"image": 256, "pathfinder32": 256, "pathfinder128": 64}.get(task, 32),
            "total_steps": steps[-1],
        },
    }
    for section, changes in (config or {}).items():
        values[section] = values.get(section, {}) | changes
    (folder / "config.json").write_text(json.dumps(values))
    lines = [{"step": step, "train/loss": 2.0, "train/accuracy": 0.2} for step in steps]
    lines += [{"step": step, "valid/loss": 2.1, "valid/accuracy": 0.25} for step in steps]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if step_seconds is not None:
        write_speed(folder, [(step, step_seconds) for step in steps])
    if finished:
        values = {
            "task": task,
            "test_accuracy": accuracy,
            "test_examples": TEST_EXAMPLES,
            "valid_accuracy": 0.25,
            "best_step": steps[-1],
            "total_steps": steps[-1],
            "step_seconds": 0.9757,
            "examples_per_second": 32.8,
            "peak_bytes": 3 * 2**30,
            "parameters": 199_882,
            "versions": {"jax": "0.10.2"},
            "device": {"kind": "cpu", "count": 1},
            "cpu_threads": 2,
            "config_sha256": "c0ffee" * 10,
            "baselines": {"constant answer": 0.172, "first token alone": 0.3565},
            "partial": partial,
        } | (result or {})
        values = {key: value for key, value in values.items() if value is not None}
        (folder / "result.json").write_text(json.dumps(values))
    return folder


def write_diverged(folder, step=12, **values):
    """Writes a run whose loss became NaN."""
    write_run(folder, finished=False, **values)
    result = {"state": "diverged", "step": step, "reason": "loss became NaN", "versions": {}}
    (folder / "result.json").write_text(json.dumps(result))
    return folder


def write_speed(folder, timed):
    """Writes a `speed.jsonl` of steps and the seconds of each step up to them."""
    lines = [json.dumps({"step": step, "step_seconds": seconds}) for step, seconds in timed]
    (folder / "speed.jsonl").write_text("".join(line + "\n" for line in lines))


def write_seeds(folder, accuracies, **values):
    """Writes a run for each accuracy, of the seeds 0, 1, …"""
    for seed, accuracy in enumerate(accuracies):
        write_run(folder / f"seed{seed}", seed=seed, accuracy=accuracy, **values)
    return folder


def groups_in(*folders):
    """The groups of all runs below `folders`."""
    return group(read(folders)[0])
