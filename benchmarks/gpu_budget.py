"""Kernels, bytes and memory of attention and training steps on a GPU, compiled without a GPU.

    python -m benchmarks.gpu_budget --out results/budget/gpu

The first rows are one attention (batch 8, 8 heads of 64, 64 landmarks, L = 4,096, a convolution of 33), the
others a training step of a config in float32. Kernels are counted in the optimized program. Their bytes are
the sizes of their operands and results, an upper bound of what they read and write. Without a GPU the
compiler cannot time variants of kernels; on a GPU it may choose other ones. The floor is the bytes of
7 L D numbers per head forward, or 17 with the gradient.
Needs the extra `plan-gpu`. The table is rewritten after every cell; the same command resumes.
"""

import importlib
import itertools
import json
import sys
from typing import Any

from benchmarks import budget, cells, stored
from benchmarks.compiled import compile_ahead
from benchmarks.gradient import with_gradient
from reporting.tables import markdown as markdown_table

GPUS = ("h200", "a100")
LENGTH = 4096
CASES = (
    *itertools.product(("bfloat16", "float32"), ("plain", "masked"), budget.MODES),
    *itertools.product(("float32",), ("listops", "image"), ("step",)),
)


def main() -> int:
    """Compiles the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.gpu_budget", __doc__, 4)
    given = parser.parse_args()
    import jax

    jax.config.update("jax_platforms", "cpu")
    if given.cell:
        print(json.dumps(cell(*given.cell)))
        return 0
    cells.require_topologies(parser, (f"{gpu}:1" for gpu in GPUS))
    return cells.collect(
        "benchmarks.gpu_budget",
        given.out,
        {"versions": stored.versions(*stored.COMPILERS)},
        ("gpu", "dtype", "case", "mode"),
        ((gpu, *case) for gpu in GPUS for case in CASES),
        markdown=markdown,
    )


def cell(gpu: str, dtype: str, case: str, mode: str) -> dict[str, Any]:
    """Returns the row of one program."""
    from nystromformer_jax.training.topology import chip_of

    if mode == "step":
        floor, (launches, temporaries) = None, step(gpu, case)
    else:
        itemsize = 2 if dtype == "bfloat16" else 4
        numbers = budget.FLOOR[mode] * budget.BATCH * budget.HEADS * LENGTH * budget.DIM
        floor, (launches, temporaries) = numbers * itemsize, attention(gpu, dtype, case, mode)
    return {
        "gpu": gpu,
        "dtype": dtype,
        "case": case,
        "mode": mode,
        "kernels": launches.count,
        "nbytes": launches.nbytes,
        "conditionals": launches.conditionals,
        "floor_bytes": floor,
        "temp_bytes": temporaries,
        "seconds": launches.nbytes / chip_of(f"{gpu}:1").memory_rate,
    }


def attention(gpu: str, dtype: str, case: str, mode: str) -> tuple[Any, int]:
    """Returns the launches and temporaries of one attention."""
    import jax
    import jax.numpy as jnp

    from nystromformer_jax import nystrom_attention
    from nystromformer_jax.training.planning.hlo import find_launches
    from nystromformer_jax.training.topology import topology_devices

    def attend(query: Any, key: Any, value: Any, kernel: Any, mask: Any = None) -> Any:
        return nystrom_attention(
            query, key, value, num_landmarks=budget.LANDMARKS, conv_kernel=kernel, mask=mask
        )

    shape = (budget.BATCH, LENGTH, budget.HEADS, budget.DIM)
    tokens = jax.ShapeDtypeStruct(shape, dtype)
    kernel = jax.ShapeDtypeStruct((budget.HEADS, budget.WIDTH), jnp.float32)
    arguments = [tokens, tokens, tokens, kernel]
    masks = [jax.ShapeDtypeStruct(shape[:2], bool)] if case == "masked" else []

    def forward(masks: Any, *arguments: Any) -> Any:
        return attend(*arguments, *masks)

    def gradient(masks: Any, *arguments: Any) -> Any:
        return with_gradient(lambda *x: attend(*x, *masks))(*arguments)

    if mode == "gradient":
        arguments.append(tokens)
    function = gradient if mode == "gradient" else forward
    compiled = compile_ahead(function, (masks, *arguments), topology_devices(f"{gpu}:1")[0])
    assert compiled.run is not None
    return find_launches(compiled.run.as_text() or ""), compiled.figures["temp_bytes"]


def step(gpu: str, name: str) -> tuple[Any, int]:
    """Returns the launches and temporaries of a config's training step."""
    from lra import train
    from nystromformer_jax.training.planning.estimate import make_plan
    from nystromformer_jax.training.topology import topology_devices

    config = importlib.import_module(f"configs.{name}").get_config().to_dict()
    config["train"]["accumulation"] = 1
    plan = make_plan(train.make_spec(train.prepare(config, topology_devices(f"{gpu}:1"))))
    assert plan.launches is not None
    assert plan.memory is not None
    return plan.launches, plan.memory.temporaries


def markdown(results: dict[str, Any]) -> str:
    """Returns a table with a row per program."""
    rows = [
        {
            "GPU": row["gpu"],
            "": f"{row['case']}, {row['dtype']}, {row['mode']}",
            "kernels": str(row["kernels"]),
            "MB": f"{row['nbytes'] / 1e6:,.0f}",
            "floor, MB": "" if row["floor_bytes"] is None else f"{row['floor_bytes'] / 1e6:,.0f}",
            "µs by bytes": f"{1e6 * row['seconds']:,.0f}",
            "temporaries, MiB": f"{row['temp_bytes'] / budget.MIB:,.0f}",
            "conditionals": str(row["conditionals"]),
        }
        for row in results["rows"]
    ]
    return markdown_table(rows)


if __name__ == "__main__":
    sys.exit(main())
