"""Time and memory of training steps on this machine's CPU, by config and attention.

    python -m benchmarks.steps --out results/steps/cpu
    python -m benchmarks.steps --parts 1 --attentions nystrom --configs listops text --out runs/whole
    python -m benchmarks.steps --configs pretrain:base,max_len=512 pretrain:base,max_len=1024 --batch 1 \
        --attentions nystrom softmax --out results/steps/bert-base

Each cell is a process with `--memory` GiB. It takes the config's batch or `--batch`, in the parts that the
programs choose, or in `--parts`. It makes five steps on random tokens of the config's shapes, and reports the
median time per step and the peak memory of the process. `run_plan.py` finds the largest batch that fits. The
table is written after every cell; the same command resumes. `GLIBC_TUNABLES=glibc.malloc.hugetlb=0`
measures without huge pages.
"""

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from jax.errors import JaxRuntimeError

from benchmarks.table import Row, Table, in_own_process, parser_for, this_machine, use_cpu
from benchmarks.timing import in_blocks
from cli.commands import number, run_to_end
from language import pretrain
from launch import huge_pages
from lra import train
from nystromformer_jax.training import peak_bytes, shard_batch
from nystromformer_jax.training.errors import is_out_of_memory
from nystromformer_jax.training.plan import compile_program
from reporting.tables import markdown as markdown_table

CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder", "pathx")
ATTENTIONS = ("nystrom", "softmax", "reformer", "linformer", "performer", "longformer", "linear")
STEPS = 5
GIB = 2**30


def main() -> int:
    """Measures the missing cells and returns the exit code."""
    parser = parser_for("benchmarks.steps", __doc__)
    add = parser.add_argument
    add("--configs", nargs="+", default=CONFIGS, help="as in configs/NAME.py:…")
    add("--attentions", nargs="+", default=ATTENTIONS)
    add("--memory", type=number(float, 0.1), default=16.0, help="GiB for a step")
    add("--batch", type=number(int, 0), default=0, help="batch size; 0: the config's")
    text = "parts of a batch, fewer if they do not divide it; 0: chosen, 1: whole"
    add("--parts", type=number(int, 0), default=0, help=text)
    given = parser.parse_args()
    use_cpu()

    def measure_missing() -> None:
        sizes = {"batch": given.batch, "parts": given.parts}
        settings = {**this_machine(), "memory_gib": given.memory, **sizes}
        table = Table("benchmarks.steps", given.out, settings)
        cells = [
            (name, attention, given.batch or config_of(name, attention)["train"]["batch_size"])
            for name, attention in itertools.product(given.configs, given.attentions)
        ]
        of_cell = functools.partial(row_of, limit=given.memory * GIB, parts=given.parts)
        table.fill(("config", "attention", "batch_size"), cells, of_cell)
        table.finish(markdown)

    return run_to_end("benchmarks.steps", measure_missing)


def row_of(config: str, attention: str, batch_size: int, limit: float, parts: int) -> Row:
    """Returns the row of a step, measured in a new process."""
    try:
        found = in_own_process(measure, config, attention, limit, batch_size, parts)
    except MemoryError:
        found = {"compiled_bytes": 0, "fits": False}
    return {"config": config, "attention": attention, "batch_size": batch_size, **found}


def measure(config: str, attention: str, limit: float, batch_size: int, parts: int) -> Row:
    """Returns memory and seconds of a step, which runs if it fits according to the compiler.

    "fits" is False if memory runs out or the peak is above the limit: a CPU's compiler does not count the
    temporaries of its fused operations.
    """
    with contextlib.suppress(OSError):  # the first process that Linux kills if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    step, compiled_bytes = compiled_step(config, attention, batch_size, parts)
    row: Row = {"compiled_bytes": compiled_bytes, "fits": False}
    if compiled_bytes > limit:
        return row
    try:
        times = in_blocks({"step": step()}, rounds=STEPS)
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return row
    peak = peak_bytes()
    seconds = times["step"]["median"]
    return {**row, "fits": peak <= limit, "step_seconds": seconds, "peak_bytes": peak}


def config_of(name: str, attention: str = "") -> dict[str, Any]:
    """Returns the config `configs/NAME.py:…`, with an attention if one is given, without data files."""
    file, _, argument = name.partition(":")
    module = importlib.import_module(f"configs.{file}")
    if file == "pretrain":
        words = [argument, f"attention={attention}" if attention else ""]
    else:
        words = [attention, argument]  # the attention comes before options
    config: dict[str, Any] = module.get_config(",".join(filter(None, words))).to_dict()
    config["eval"]["batch_size"] = 0
    if file == "pretrain":
        config["data"]["dir"] = "."  # no text is read
    else:
        config["data"]["curriculum"] = 0  # a smaller batch would need more steps than the run has
    return config


def spec_of(config: dict[str, Any], devices: Any = None) -> tuple[Any, Any]:
    """Returns the run and the `TrainSpec` of a config of the benchmark or of pretraining."""
    trainer: Any = pretrain if "objective" in config else train
    run = trainer.prepare(config, devices)
    return run, trainer.make_spec(run)


def compiled_step(
    name: str, attention: str, batch_size: int, parts: int
) -> tuple[Callable[[], Callable[[], Any]], int]:
    """Returns a function that prepares calls of a step, and the compiler's figure of its bytes."""
    config = config_of(name, attention)
    config["train"] |= {
        "batch_size": batch_size,
        "accumulation": parts and _divisor(batch_size, parts),
    }
    run, spec = spec_of(config)
    lowered = spec.make_train_step().lower(*spec.argument_shapes())
    program = compile_program(lowered, spec.mesh.devices.flat[0])
    batch = random_batch(run, spec)
    return lambda: step_call(spec, [batch], program.run), program.peak_bytes or 0


def _divisor(number: int, limit: int) -> int:
    """Returns the largest divisor of a number that is at most `limit`."""
    return next(one for one in range(min(limit, number), 0, -1) if number % one == 0)


def random_batch(run: Any, spec: Any) -> dict[str, Any]:
    """Returns random tokens in the shapes of a run; each row is padded by up to a half."""
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
            high = vocab
            if key == "labels":
                high = run.model.num_classes
            elif key == "positions":
                high = spec.row["inputs"].shape[0]
            batch[key] = random.integers(0, high, (rows, *leaf.shape), np.int32)
    return batch


def step_call(spec: Any, batches: Sequence[Mapping[str, Any]], step: Any) -> Callable[[], Any]:
    """Returns a function without arguments that makes one update per batch, on any device."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, spec.argument_shapes()[:2])
    # Without the shardings, the second call of the step would compile again.
    state, totals = jax.jit(spec.init_state, out_shardings=shardings)()
    placed = [shard_batch(batch, spec.mesh) for batch in batches]

    def updates() -> Any:
        nonlocal state, totals
        for batch in placed:
            state, totals, loss = step(state, totals, batch)
        return loss

    return updates


def compare(config: dict[str, Any], rounds: int, device: str = "") -> dict[str, Any]:
    """Returns the times of a config's step and, on PyTorch's `device`, of Hugging Face's modules.

    An error of the peer is the value of "Hugging Face, error". It has no classifier of pairs.
    """
    run, spec = spec_of(config)
    batch = random_batch(run, spec)
    cases, found = {"ours": step_call(spec, [batch], spec.make_train_step())}, dict[str, Any]()
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


def markdown(*results: Mapping[str, Any]) -> str:
    """Returns a table: configs in rows, attentions in columns.

    Of several results, each has the key "title", which follows the attention in the heading.
    """
    table = pd.DataFrame(
        [
            {
                "s per step · GiB": f"{row['config']}, batch {row['batch_size']}",
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
    return f"{row['step_seconds']:.2f} · {row['peak_bytes'] / GIB:.1f}"


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
