"""Memory and time of attention on a TPU or GPU, by its compiler, without the device.

    python -m benchmarks.budgets --out results/budgets/attention

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. Compared are our kernels for TPUs, our
plain form, a literal port of other implementations, and exact attention. The kernels take [B L E] from the
projections, the others their fastest layout, [B H L D].

Times are rooflines of FLOPs and bytes, as in `run_plan.py`. The floor is the time to read and write 7 L D
numbers per head forward, or 17 with the gradient. Residuals are what the gradient keeps besides the inputs.
Needs the extras `plan` and `plan-gpu`. The table is rewritten after every cell; the same command resumes.
"""

import functools
import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.attention import BATCH, DIM, HEADS, MODES, WIDTH, attend, with_gradient
from benchmarks.compiled import compile_ahead
from benchmarks.table import COMPILERS, Row, Table, in_own_process, parser_for, use_cpu, versions
from cli.commands import run_to_end
from nystromformer_jax.training.plan import roofline_seconds
from nystromformer_jax.training.topology import chip_of, topology_devices

FORMS = ("kernels", "plain", "literal", "exact")
# Forms that are compiled at some lengths, by topology. On a GPU the plain form runs.
CASES: tuple[tuple[str, tuple[str, ...], tuple[int, ...]], ...] = (
    ("v5e:1x1", ("kernels",), (512,)),
    ("v5e:1x1", FORMS, (4096, 16_384)),
    ("v5p:1x1x1", ("kernels", "plain"), (4096,)),
    ("v6e:1x1", ("kernels", "plain"), (4096,)),
    ("h200:1", ("plain", "masked", "plain float32"), (4096,)),
    ("a100:1", ("plain",), (4096,)),
)
FLOOR = {"forward": 7, "gradient": 17}  # arrays of L D numbers per head that are read or written


def main() -> int:
    """Compiles the missing cells and returns the exit code."""
    given = parser_for("benchmarks.budgets", __doc__).parse_args()
    use_cpu()

    def compile_missing() -> None:
        for topology, _, _ in CASES:
            topology_devices(topology)  # raises an error if its compiler is not installed
        settings = {"versions": versions(*COMPILERS), "time": "roofline"}
        table = Table("benchmarks.budgets", given.out, settings)
        for topology, forms, lengths in CASES:
            cells = itertools.product([topology], MODES, lengths, forms)
            measure = functools.partial(in_own_process, budget)
            table.fill(("topology", "mode", "length", "form"), cells, measure)
        table.finish()

    return run_to_end("benchmarks.budgets", compile_missing)


def budget(topology: str, mode: str, length: int, form: str) -> Row:
    """Returns the row of one form at one length."""
    chip = chip_of(topology)
    function, arguments, kept = program(form, mode, length, natural=chip.gpu is not None)
    compiled = compile_ahead(function, arguments, topology_devices(topology)[0])
    numbers = FLOOR[mode] * BATCH * HEADS * length * DIM
    return {
        "topology": topology,
        "form": form,
        "mode": mode,
        "length": length,
        "fits": compiled.run is not None,
        "temp_bytes": compiled.temp_bytes,
        "kept_bytes": kept,
        "floor_seconds": numbers * (4 if "float32" in form else 2) / chip.memory_rate,
        "seconds": roofline_seconds(compiled.flops, compiled.bytes_accessed, chip),
    }


def program(
    form: str, mode: str, length: int, *, natural: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...], int]:
    """Returns the function, the shapes of its arguments, and the bytes of residuals besides its inputs.

    With `natural`, tokens are [B L H D].
    """
    flat, dtype = form == "kernels", jnp.float32 if "float32" in form else jnp.bfloat16
    shape: tuple[int, ...] = (BATCH, HEADS, length, DIM)
    if flat or natural:
        shape = (BATCH, length, HEADS * DIM) if flat else (BATCH, length, HEADS, DIM)
    tokens = jax.ShapeDtypeStruct(shape, dtype)
    kernel = jax.ShapeDtypeStruct((HEADS, WIDTH), jnp.float32)

    def forward(mask: Any, query: Any, key: Any, value: Any, conv_kernel: Any) -> Any:
        query, key, value = (
            x.reshape(BATCH, length, HEADS, DIM) if flat or natural else x.swapaxes(1, 2)
            for x in (query, key, value)
        )
        if form == "masked":  # not a constant, which would save some of its work
            mask = jnp.isfinite(query[..., 0, 0])
        name = "plain" if form == "masked" else form.split()[0]
        output = attend(name, mask, query, key, value, conv_kernel)
        return output.reshape(shape) if flat or natural else output.swapaxes(1, 2)

    inputs = (tokens, tokens, tokens, kernel)
    if mode == "forward":
        return forward, (None, *inputs), 0
    _, pull_back = jax.eval_shape(lambda *x: jax.vjp(lambda *y: forward(None, *y), *x), *inputs)
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull_back))
    kept -= 3 * tokens.size * tokens.dtype.itemsize
    return with_gradient(forward), (None, *inputs, tokens), kept


if __name__ == "__main__":
    sys.exit(main())
