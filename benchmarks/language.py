"""Cost of a pretraining step of BERT-base by length, with Nyström and with softmax attention.

    python -m benchmarks.language --out results/language/cost                    # time and memory, measured
    python -m benchmarks.language --out results/language/v5e --topology=v5e:1x1  # the largest batch that fits

The step is that of pretraining: 12 layers of 768, 12 heads, 30,000 tokens, masked words and sentence order,
dropout, gradient, AdamW. Each cell is a process with `--memory` GiB on this machine's CPU: float32, batch 1,
the median of three steps, and the peak memory. For a TPU the step is compiled ahead of time in bfloat16 and
not run. Memory is then the compiler's figure. It grows almost linearly with the batch, so few batches need to
be compiled to find the largest that fits. The table is rewritten after every cell; the same command resumes.
"""

import itertools
import json
import os
import sys
from typing import Any

import pandas as pd

from benchmarks import cells, stored
from benchmarks.steps import needed_bytes, prefer_oom_kill, timed
from launch import huge_pages
from reporting.tables import markdown as markdown_table

LENGTHS = (512, 1024, 2048, 4096)
ATTENTIONS = ("nystrom", "softmax")
VOCAB_SIZE = 30_000
STEPS = 3
GIB = 2**30


def main() -> int:
    """Measures the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.language", __doc__, 2)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--attentions", nargs="+", choices=ATTENTIONS, default=ATTENTIONS)
    parser.add_argument("--memory", type=float, default=16.0, help="GiB for a step")
    parser.add_argument("--topology", default="", help="compile for a TPU such as v5e:1x1")
    given = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # also for the processes of the cells
    if given.topology:
        cells.require_topologies(parser, [given.topology])
    if given.cell:
        length, attention = int(given.cell[0]), given.cell[1]
        measured = (
            largest_batch(length, attention, given.topology, given.memory * GIB)
            if given.topology
            else measure(length, attention, given.memory * GIB)
        )
        print(json.dumps({"length": length, "attention": attention, **measured}))
        return 0
    if given.memory <= 0:
        parser.error(f"--memory must be a positive number of GiB, got {given.memory}")
    machine = (
        {"versions": stored.versions(*stored.COMPILERS)}
        if given.topology
        else stored.this_machine()
    )
    return cells.collect(
        "benchmarks.language",
        given.out,
        {**machine, "topology": given.topology, "memory_gib": given.memory},
        ("length", "attention"),
        itertools.product(map(str, given.lengths), given.attentions),
        arguments=[f"--memory={given.memory}", f"--topology={given.topology}"],
        markdown=markdown,
    )


def measure(length: int, attention: str, limit: float) -> dict[str, Any]:
    """Returns the seconds per step at batch 1, and the peak memory of this process."""
    import jax

    prefer_oom_kill()
    step, make, compiled_bytes = compiled_step(length, attention, 1, "float32", jax.devices()[0])
    cost = None
    if compiled_bytes is not None and compiled_bytes <= limit:
        out_of_memory_row = {"length": length, "attention": attention, "fits": False}
        print(json.dumps({**out_of_memory_row, "compiled_bytes": compiled_bytes}), flush=True)
        cost = timed(step, make, STEPS, limit)
    return {"fits": cost is not None, "compiled_bytes": compiled_bytes, **(cost or {})}


def largest_batch(length: int, attention: str, topology: str, limit: float) -> dict[str, Any]:
    """Returns the largest batch that the TPU's compiler fits into `limit`, and the bytes of some batches."""
    from nystromformer_jax.training.planning.estimate import largest_that_fits
    from nystromformer_jax.training.topology import topology_devices

    device = topology_devices(topology)[0]
    sizes: dict[int, int | None] = {}

    def needed(batch_size: int) -> int | None:
        sizes[batch_size] = compiled_step(length, attention, batch_size, "bfloat16", device)[2]
        return sizes[batch_size]

    params = 3 * 4 * 110_000_000  # BERT-base and AdamW's two moments, as a first estimate
    largest = largest_that_fits(needed, limit, first=8, base=params)
    return {
        "fits": largest > 0,
        "largest_batch": largest,
        "compiled_bytes": {str(size): bytes for size, bytes in sorted(sizes.items())},
    }


def compiled_step(
    length: int, attention: str, batch_size: int, dtype: str, device: Any
) -> tuple[Any, Any, int | None]:
    """Returns the step, a function that makes its arguments, and the bytes that it needs (None: unknown).

    The first two are None if the compiler finds too little memory.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.errors import JaxRuntimeError

    from benchmarks.compiled import needed_memory
    from language.masking import ObjectiveConfig, Vocabulary
    from language.pretrain import make_loss
    from nystromformer_jax import NystromformerConfig, NystromformerForPreTraining, training
    from nystromformer_jax.training.errors import is_out_of_memory

    config = NystromformerConfig.preset(
        "base",
        vocab_size=VOCAB_SIZE,
        max_len=length,
        attention=attention,
        conv_kernel_size={"nystrom": 65 if length > 2048 else 33, "softmax": 0}[attention],
        dtype=dtype,
    )
    model = NystromformerForPreTraining(config)
    starts = np.random.default_rng(0).random(VOCAB_SIZE) < 0.7
    vocabulary = Vocabulary.create(mask_id=4, special_ids=tuple(range(5)), word_starts=starts)
    random = np.random.default_rng(1)
    half = np.full(batch_size, (length - 3) // 2, np.int32)
    batch = {
        "inputs": random.integers(5, VOCAB_SIZE, (batch_size, length), np.int32),
        "first_len": half,
        "second_len": length - 3 - half,
        "example": np.arange(batch_size, dtype=np.int32),
    }

    def make_params() -> Any:
        tokens = jnp.zeros((1, length), jnp.int32)
        return model.init(jax.random.key(0), tokens, deterministic=True)["params"]

    spec = training.TrainSpec(
        config=training.FitConfig(
            train=training.TrainConfig(total_steps=100, batch_size=batch_size),
            optimizer=training.OptimizerConfig(
                learning_rate=1e-4, warmup_steps=10, weight_decay=0.01
            ),
        ),
        mesh=training.make_mesh(training.MeshConfig(), [device]),
        make_params=make_params,
        loss_fn=make_loss(model, vocabulary, ObjectiveConfig()),
        row={
            name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
            for name, array in batch.items()
        },
    )
    shapes = spec.argument_shapes()
    try:
        compiled = spec.make_train_step().lower(*shapes).compile()
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
        return None, None, needed_memory(str(error), num_bytes, 0)["peak_bytes"]

    def make() -> tuple[Any, ...]:
        return *jax.jit(spec.init_state)(), training.shard_batch(
            {**batch, "weights": np.ones(batch_size, np.float32)}, spec.mesh
        )

    return compiled, make, needed_bytes(compiled)


def markdown(results: dict[str, Any]) -> str:
    """Returns a table: lengths in rows, both attentions in columns, and softmax over Nyström."""
    rows = {(row["length"], row["attention"]): row for row in results["rows"]}
    lengths = sorted({length for length, _ in rows})
    table = []
    if results["settings"]["topology"]:
        for length in lengths:
            ours, exact = (rows.get((length, name), {}).get("largest_batch") for name in ATTENTIONS)
            ratio = f"{ours / exact:.1f}×" if ours and exact else ""
            table.append([f"{length:,}", _count(ours), _count(exact), ratio])
        columns = ["n", "Nyström, largest batch", "softmax, largest batch", ""]
        return markdown_table(pd.DataFrame(table, columns=columns))
    for length in lengths:
        ours, exact = (rows.get((length, name)) for name in ATTENTIONS)
        ratio = ""
        if ours and exact and ours["fits"] and exact["fits"]:
            time_ratio = exact["step_seconds"] / ours["step_seconds"]
            ratio = f"{time_ratio:.2f}×, {exact['peak_bytes'] / ours['peak_bytes']:.2f}×"
        table.append([f"{length:,}", _cost(ours), _cost(exact), ratio])
    columns = ["n", "Nyström, s · GiB", "softmax, s · GiB", "time, memory"]
    return markdown_table(pd.DataFrame(table, columns=columns))


def _count(batch_size: int | None) -> str:
    return "" if batch_size is None else str(batch_size or "does not fit at 1")


def _cost(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if not row["fits"]:
        return "does not fit"
    return f"{row['step_seconds']:.1f} · {row['peak_bytes'] / GIB:.1f}"


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
