"""Cost of a training step of every task with every attention, with the configs' shapes.

    python -m benchmarks.tasks --out results/tasks/cpu

Each cell is a process with `--memory` GiB. It takes the config's batch, or the largest half, quarter and so
on whose step fits, in the parts that the programs choose, or in `--parts`. It trains five steps on random
tokens of that shape, and reports the time per step and the peak memory of the process, on a CPU. "does not
fit" means that not even a batch of 1 fits.
The table is written after every cell; the same command resumes.
"""

import argparse
import importlib
import itertools
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import pandas as pd

from benchmarks import cells, stored
from benchmarks.steps import needed_bytes, prefer_oom_kill, timed
from launch import huge_pages
from reporting.tables import markdown as markdown_table

TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ATTENTIONS = ("nystrom", "softmax", "reformer", "linformer", "performer", "longformer", "linear")
STEPS = 5
GIB = 2**30


def main() -> int:
    """Measures the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.tasks", __doc__, 2)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--memory", type=float, default=16.0, help="GiB for a step")
    parser.add_argument(
        "--parts", type=int, default=0, help="parts of a batch; 0: chosen, 1: whole"
    )
    parser.add_argument("--batch", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # also for the processes of the cells
    if given.cell:
        task, attention = given.cell
        print(json.dumps(measure(task, attention, given.memory * GIB, given.batch, given.parts)))
        return 0
    if given.memory <= 0 or given.parts < 0:
        parser.error("--memory must be a positive number of GiB, and --parts 0 or more")
    return cells.collect(
        "benchmarks.tasks",
        given.out,
        {**stored.this_machine(), "memory_gib": given.memory, "parts": given.parts},
        ("task", "attention"),
        itertools.product(given.tasks, given.attentions),
        arguments=[f"--memory={given.memory}", f"--parts={given.parts}"],
        retry_arguments=_halved_batch,
        markdown=markdown,
        line=_line,
    )


def measure(
    task: str, attention: str, limit: float, batch_size: int = 0, parts: int = 0
) -> dict[str, Any]:
    """Returns the row of a cell: batch, median seconds per step, compiled and peak memory.

    The batch is the largest that fits according to the compiler, starting from `batch_size` (0: the
    config's). A row is printed before the step runs, because the step may need more memory than the
    compiler's figure.
    """
    prefer_oom_kill()
    config = _config(task, attention, parts)
    asked = config["train"]["batch_size"]
    batch_size = batch_size or asked
    while True:
        config["train"]["batch_size"] = batch_size
        step, arguments, compiled_bytes = _compiled_step(config)
        row = {
            "task": task,
            "attention": attention,
            "config_batch_size": asked,
            "batch_size": batch_size,
            "compiled_bytes": compiled_bytes,
        }
        if compiled_bytes <= limit:
            print(json.dumps({**row, "fits": False}), flush=True)
            cost = timed(step, arguments, STEPS, limit)
            return {**row, "fits": cost is not None, **(cost or {})}
        if batch_size == 1:
            return {**row, "fits": False}
        # Memory grows with the batch, so much smaller ones need not be tried one by one.
        shares = max(1, int(compiled_bytes / limit).bit_length() - 1)
        batch_size = max(1, batch_size >> shares)


def _halved_batch(row: dict[str, Any]) -> list[str]:
    if row["fits"] or row["batch_size"] == 1:
        return []
    return [f"--batch={row['batch_size'] // 2}"]


def _config(task: str, attention: str, parts: int) -> dict[str, Any]:
    """Returns the task's config for a batch in `parts`.

    The curriculum is turned off, because with a smaller batch it would need more steps than the run has.
    """
    config: dict[str, Any] = (
        importlib.import_module(f"configs.{task}").get_config(attention).to_dict()
    )
    config["train"]["accumulation"] = parts
    config["data"]["curriculum"] = 0
    config["eval"]["batch_size"] = 0
    return config


def _compiled_step(config: dict[str, Any]) -> tuple[Any, Any, int]:
    """Returns the step, a function that makes its arguments, and the compiler's figure of its bytes."""
    from lra import train
    from nystromformer_jax import training

    run = train.prepare(config)
    spec = train.make_spec(run)
    batch = random_batch(run)
    compiled = spec.make_train_step().lower(*spec.argument_shapes()).compile()
    return (
        compiled,
        lambda: (*spec.init_state(), training.shard_batch(batch, run.mesh)),
        needed_bytes(compiled),
    )


def random_batch(run: Any) -> dict[str, Any]:
    """Returns random tokens in the task's shapes; each row is padded by up to a half."""
    import numpy as np

    random = np.random.default_rng(0)
    rows, length = run.fit.train.batch_size, run.data.padding.padded_len
    batch = {"labels": random.integers(0, run.model.num_classes, rows, np.int32)}
    for key in run.model.batch_keys:
        lengths = random.integers(length // 2, length + 1, rows)
        if key.startswith("mask"):
            batch[key] = np.arange(length) < lengths[:, None]
        else:
            high = run.model.config.vocab_size
            batch[key] = random.integers(0, high, (rows, length), np.int32)
    batch["weights"] = np.ones(rows, np.float32)
    return batch


def markdown(results: dict[str, Any]) -> str:
    """Returns a table: tasks in rows, attentions in columns; cells have the batch if it was reduced."""
    rows = {(row["task"], row["attention"]): row for row in results["rows"]}
    attentions = [name for name in ATTENTIONS if any(name == key[1] for key in rows)]
    table = []
    for task in TASKS:
        if not any(task == key[0] for key in rows):
            continue
        cells = [_cell(rows.get((task, name))) for name in attentions]
        batch = next(row["config_batch_size"] for key, row in rows.items() if key[0] == task)
        table.append([f"{task}, batch {batch}", *cells])
    return markdown_table(pd.DataFrame(table, columns=["steps/s · GiB", *attentions]))


def parts_markdown(tables: Mapping[str, dict[str, Any]]) -> str:
    """Returns seconds per step and memory with Nyström attention: tasks in rows, `tables` in columns."""
    columns = [
        {row["task"]: row for row in results["rows"] if row["attention"] == "nystrom"}
        for results in tables.values()
    ]
    rows = [
        [
            f"{task}, batch {columns[0][task]['batch_size']}",
            *(
                f"{c[task]['step_seconds']:.2f} · {c[task]['peak_bytes'] / GIB:.1f}"
                for c in columns
            ),
        ]
        for task in columns[0]
    ]
    return markdown_table(pd.DataFrame(rows, columns=["s per step · GiB", *tables]))


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if not row["fits"]:
        return "does not fit"
    text = f"{1 / row['step_seconds']:.3g} · {row['peak_bytes'] / GIB:.1f}"
    smaller = row["batch_size"] < row["config_batch_size"]
    return f"{text} (batch {row['batch_size']})" if smaller else text


def _line(row: dict[str, Any]) -> str:
    return f"{row['task']:10} {row['attention']:10} {_cell(row)}"


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
