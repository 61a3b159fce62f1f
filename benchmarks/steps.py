"""Time and memory of training steps on this machine's CPU, by config and attention.

    python -m benchmarks.steps --out results/steps/cpu
    python -m benchmarks.steps --parts 1 --attentions nystrom --out results/steps/whole
    python -m benchmarks.steps --configs pretrain:base,max_len=512 pretrain:base,max_len=1024 --batch 1 \
        --attentions nystrom softmax --out results/steps/bert-base

Each cell is a process with `--memory` GiB. It takes the config's batch or `--batch`, or the largest half,
quarter and so on whose step fits, in the parts that the programs choose, or in `--parts`. It makes five steps
on random tokens of the config's shapes, and reports the median time per step and the peak memory of the
process. "does not fit" means that not even a batch of 1 fits. The table is written after every cell; the same
command resumes. `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` measures without huge pages.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import cells
from launch import huge_pages
from reporting.tables import markdown as markdown_table

CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ATTENTIONS = ("nystrom", "softmax", "reformer", "linformer", "performer", "longformer", "linear")
STEPS = 5
GIB = 2**30


def main() -> int:
    """Measures the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.steps", __doc__, 2)
    parser.add_argument("--configs", nargs="+", default=CONFIGS, help="as in configs/NAME.py:…")
    parser.add_argument("--attentions", nargs="+", default=ATTENTIONS)
    parser.add_argument("--memory", type=float, default=16.0, help="GiB for a step")
    parser.add_argument("--batch", type=int, default=0, help="batch size; 0: the config's")
    parser.add_argument(
        "--parts", type=int, default=0, help="parts of a batch; 0: chosen, 1: whole"
    )
    parser.add_argument("--smaller", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # also for the processes of the cells
    if given.cell:
        limit = given.memory * GIB
        config, attention = given.cell
        row = measure(config, attention, limit, given.batch, given.parts, given.smaller)
        print(json.dumps(row))
        return 0
    if given.memory <= 0 or given.parts < 0 or given.batch < 0:
        parser.error("--memory must be positive, and --parts and --batch 0 or more")
    return cells.collect(
        "benchmarks.steps",
        given.out,
        {
            **cells.this_machine(),
            "memory_gib": given.memory,
            "batch": given.batch,
            "parts": given.parts,
        },
        ("config", "attention"),
        itertools.product(given.configs, given.attentions),
        arguments=[f"--{name}={getattr(given, name)}" for name in ("memory", "batch", "parts")],
        retry_arguments=_halved_batch,
        markdown=markdown,
    )


def measure(
    config: str, attention: str, limit: float, asked: int = 0, parts: int = 0, smaller: int = 0
) -> dict[str, Any]:
    """Returns the row of a cell: batch, median seconds per step, compiled and peak memory.

    The batch is the largest that fits according to the compiler, starting from `smaller`, else from `asked`
    (0: the config's). A row is printed before the step runs, because the step may need more memory than the
    compiler's figure.
    """
    with contextlib.suppress(OSError):  # the first process that Linux kills if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    asked = asked or config_of(config, attention)["train"]["batch_size"]
    batch_size = smaller or asked
    while True:
        step, arguments, compiled_bytes = compiled_step(config, attention, batch_size, parts)
        row = {
            "config": config,
            "attention": attention,
            "asked_batch_size": asked,
            "batch_size": batch_size,
            "compiled_bytes": compiled_bytes,
        }
        if compiled_bytes <= limit:
            print(json.dumps({**row, "fits": False}), flush=True)
            cost = timed(step, arguments, limit)
            return {**row, "fits": cost is not None, **(cost or {})}
        if batch_size == 1:
            return {**row, "fits": False}
        # Memory grows with the batch, so much smaller ones need not be tried one by one.
        shares = max(1, int(compiled_bytes / limit).bit_length() - 1)
        batch_size = max(1, batch_size >> shares)


def _halved_batch(row: dict[str, Any]) -> list[str]:
    if row["fits"] or row["batch_size"] == 1:
        return []
    return [f"--smaller={row['batch_size'] // 2}"]


def config_of(name: str, attention: str = "") -> dict[str, Any]:
    """Returns the config `configs/NAME.py:…` with an attention, without data files or a curriculum.

    With a smaller batch, the curriculum would need more steps than the run has.
    """
    file, _, argument = name.partition(":")
    module = importlib.import_module(f"configs.{file}")
    words = [argument, f"attention={attention}" if file == "pretrain" else attention]
    config: dict[str, Any] = module.get_config(",".join(filter(None, words))).to_dict()
    config["eval"]["batch_size"] = 0
    if file == "pretrain":
        config["data"]["dir"] = "."  # no text is read
    else:
        config["data"]["curriculum"] = 0
    return config


def spec_of(config: dict[str, Any], devices: Any = None) -> tuple[Any, Any]:
    """Returns the run and the `TrainSpec` of a config of the benchmark or of pretraining."""
    from language import pretrain
    from lra import train

    trainer: Any = pretrain if "objective" in config else train
    run = trainer.prepare(config, devices)
    return run, trainer.make_spec(run)


def compiled_step(
    name: str, attention: str, batch_size: int, parts: int
) -> tuple[Any, Callable[[], Any], int]:
    """Returns the step, a function that makes its arguments, and the compiler's figure of its bytes."""
    from nystromformer_jax import training

    config = config_of(name, attention)
    config["train"] |= {"batch_size": batch_size, "accumulation": parts}
    run, spec = spec_of(config)
    compiled = spec.make_train_step().lower(*spec.argument_shapes()).compile()
    memory = compiled.memory_analysis()
    num_bytes = memory.temp_size_in_bytes + memory.argument_size_in_bytes
    num_bytes += memory.output_size_in_bytes - memory.alias_size_in_bytes  # donated ones count once
    batch = random_batch(run, spec)
    return (
        compiled,
        lambda: (*spec.init_state(), training.shard_batch(batch, spec.mesh)),
        num_bytes,
    )


def random_batch(run: Any, spec: Any) -> dict[str, Any]:
    """Returns random tokens in the shapes of a run; each row is padded by up to a half."""
    import numpy as np

    random, rows = np.random.default_rng(0), spec.config.train.batch_size
    is_language = "objective" in run.config
    vocab = run.data.vocab_size if is_language else run.model.config.vocab_size
    batch: dict[str, Any] = {"weights": np.ones(rows, np.float32)}
    for key, leaf in spec.row.items():
        if key.startswith("mask"):
            lengths = random.integers(leaf.shape[0] // 2, leaf.shape[0] + 1, rows)
            batch[key] = np.arange(leaf.shape[0]) < lengths[:, None]
        elif key in ("first_len", "second_len"):
            batch[key] = np.full(rows, (run.data.max_len - 3) // 2, np.int32)
        else:
            high = run.model.num_classes if key == "labels" else vocab
            batch[key] = random.integers(0, high, (rows, *leaf.shape), np.int32)
    return batch


def step_call(spec: Any, batch: Mapping[str, Any]) -> Callable[[], Any]:
    """Returns a function without arguments that makes one update on a fixed batch, on any device."""
    import jax

    from nystromformer_jax import training

    step = spec.make_train_step()
    shardings = jax.tree.map(lambda leaf: leaf.sharding, spec.argument_shapes()[:2])
    # Without the shardings, the second call of the step would compile again.
    state, totals = jax.jit(spec.init_state, out_shardings=shardings)()
    placed = training.shard_batch(batch, spec.mesh)

    def one() -> Any:
        nonlocal state, totals
        state, totals, loss = step(state, totals, placed)
        return loss

    return one


def compare(config: dict[str, Any], rounds: int, device: str = "") -> dict[str, Any]:
    """Returns the times of a config's step and, on PyTorch's `device`, of Hugging Face's modules.

    An error of the peer is the value of "Hugging Face, error". It has no classifier of pairs.
    """
    from benchmarks.timing import in_blocks

    run, spec = spec_of(config)
    batch = random_batch(run, spec)
    cases, found = {"ours": step_call(spec, batch)}, dict[str, Any]()
    if device and "inputs" in batch:
        try:
            from benchmarks import peers

            sizes = (config["attention"][key] for key in ("num_landmarks", "conv_kernel_size"))
            model = peers.Classifier(run.model.config, run.model.num_classes, *sizes)
            cases["Hugging Face"] = peers.training_step(model, batch, device)
            cases["Hugging Face"]()
        except Exception as error:  # our step is measured all the same
            cases.pop("Hugging Face", None)
            found["Hugging Face, error"] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found | in_blocks(cases, rounds=rounds, budget_seconds=300.0)


def timed(step: Any, make: Callable[[], Any], limit_bytes: float) -> dict[str, float] | None:
    """Returns the median seconds of `STEPS` steps after a warm-up step, the last loss, and the peak memory.

    Returns None if memory runs out or the peak is above the limit: a CPU's compiler does not count the
    temporaries of its fused operations.
    """
    from jax.errors import JaxRuntimeError

    from nystromformer_jax.training import peak_bytes
    from nystromformer_jax.training.errors import is_out_of_memory

    seconds = []
    try:
        state, totals, batch = make()
        for _ in range(1 + STEPS):
            began = time.perf_counter()
            state, totals, loss = step(state, totals, batch)
            loss.block_until_ready()
            seconds.append(time.perf_counter() - began)
            peak = peak_bytes()
            if peak > limit_bytes:
                return None
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    median = statistics.median(seconds[1:])
    return {"step_seconds": median, "loss": float(loss), "peak_bytes": peak}


def markdown(*results: Mapping[str, Any]) -> str:
    """Returns a table: configs in rows, attentions in columns; cells have the batch if it was reduced.

    Of several results, each has the key "title", which follows the attention in the heading.
    """
    table = pd.DataFrame(
        [
            {
                "s per step · GiB": f"{row['config']}, batch {row['asked_batch_size']}",
                "column": ", ".join(filter(None, [row["attention"], part.get("title")])),
                "cell": _cell(row),
            }
            for part in results
            for row in part["rows"]
        ]
    )
    names = ["s per step · GiB", "column"]
    cells = table.set_index(names)["cell"].unstack(sort=False)
    return markdown_table(cells.reset_index())


def _cell(row: Mapping[str, Any]) -> str:
    if not row["fits"]:
        return "does not fit"
    text = f"{row['step_seconds']:.2f} · {row['peak_bytes'] / GIB:.1f}"
    smaller = row["batch_size"] < row["asked_batch_size"]
    return f"{text} (batch {row['batch_size']})" if smaller else text


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
