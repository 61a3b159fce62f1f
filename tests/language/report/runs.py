"""Handmade runs: folders as `run_pretrain.py` and `run_finetune.py` write them, without training."""

from language.finetune.glue_tasks import TASKS
from language.report.tables import group, read
from tests.reporting.handmade import write

EXAMPLES = 400
COMMON = {
    "best_step": 200,
    "total_steps": 300,
    "step_seconds": 0.1234,
    "examples_per_second": 260.0,
    "peak_bytes": 2**30,
    "device": {"kind": "cpu", "count": 1},
    "cpu_threads": 2,
    "versions": {"jax": "0.10.2"},
    "partial": False,
}


def write_glue(folder, task="sst2", *, seed=3, value=0.9, config=None, **result):
    """Writes a finished fine-tuning: `value` is every metric, `config` overrides the handmade one."""
    metrics = dict.fromkeys(TASKS[task].metrics, value)
    values = {
        "kind": "glue",
        "task": task,
        "attention": "nystrom",
        "init": "/somewhere/runs/pretrain-small/model",
        "from_scratch": False,
        "valid": metrics,
        "valid_standard_error": dict.fromkeys(metrics, 0.015),
        "valid_examples": EXAMPLES,
    }
    if task == "mnli":
        values |= {"valid_mismatched": dict.fromkeys(metrics, value - 0.01)}
        values |= {"valid_mismatched_examples": EXAMPLES}
    if task == "imdb":
        values |= {"test": dict.fromkeys(metrics, value - 0.02), "test_examples": EXAMPLES}
    sections = {
        "data": {"task": task, "dir": "/somewhere/glue", "max_len": 128},
        "attention": {"name": "nystrom", "num_landmarks": 64},
        "init": {"checkpoint": "/somewhere/runs/pretrain-small/model"},
        "optimizer": {"learning_rate": 3e-5},
        "train": {"epochs": 4.0, "batch_size": 32, "seed": seed},
        "mesh": {"data": -1},
    }
    return _write(folder, seed, sections, config, values | result, [])


def write_pretraining(folder, *, seed=3, attention="nystrom", accuracy=0.3, config=None, **result):
    """Writes a finished pretraining of 300 steps."""
    values = {
        "kind": "pretrain",
        "attention": attention,
        "init": "",
        "valid": {
            "mlm_accuracy": accuracy,
            "mlm_loss": 4.1,
            "order_accuracy": 0.7,
            "perplexity": 60.3,
            "loss": 4.8,
        },
        "valid_examples": EXAMPLES,
        "parameters": 12_345_678,
        "baselines": {"mlm_accuracy": 0.05, "mlm_loss": 7.25, "order_accuracy": 0.5},
    }
    options = {"num_landmarks": 64} if attention == "nystrom" else {}
    sections = {
        "data": {"dir": "/somewhere/text", "max_len": 128, "tokenizer": ""},
        "attention": {"name": attention, **options},
        "objective": {"order_weight": 1.0},
        "init": {"checkpoint": ""},
        "train": {"total_steps": 300, "seed": seed},
    }
    lines = [
        {
            "step": step,
            "valid/mlm_accuracy": accuracy * step / 300,
            "valid/mlm_loss": 8 - step / 100 - seed / 10,
            "valid/order_accuracy": 0.5 + step / 1500,
        }
        for step in (100, 200, 300)
    ]
    lines.insert(1, {"step": 150, "train/mlm_loss": 6.0})
    return _write(folder, seed, sections, config, values | result, lines)


def _write(folder, seed, sections, config, result, lines):
    changed = [f"{key}={value}" for own in (config or {}).values() for key, value in own.items()]
    sections |= {"label": ", ".join([result["attention"], *changed]), "recipe": "", "command": ""}
    return write(folder, sections, {**COMMON, "seed": seed, **result}, lines, config=config)


def groups_in(*folders):
    """The groups of all runs below `folders`."""
    return group(read(folders)[0])
