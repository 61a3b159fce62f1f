"""Kernels, bytes, memory and time of attention on a TPU or GPU, by its compiler, without the device.

    python -m benchmarks.budgets --out results/budgets/attention

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. Compared are our kernels for TPUs, our
plain form, a literal port of other implementations, and exact attention. The kernels take [B L E] from the
projections, the others their fastest layout, [B H L D].

Times are estimates. On a GPU it is the bytes of all kernels over the memory bandwidth. On a TPU, the time of
one of our kernels is the larger of the cycles in the compiler's static profile and its bytes over the
bandwidth; for all other operations it is the compiler's estimate. The floor is the time to read and write
7 L D numbers per head forward, or 17 with the gradient. Needs the extras `plan` and `plan-gpu`. The table is
rewritten after every cell; the same command resumes.
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import cells
from benchmarks.forms import BATCH, DIM, HEADS, MODES, WIDTH
from nystromformer_jax.training.collectives import operations_of
from reporting.tables import markdown as markdown_table

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
MIB = 2**20
# Operations of an optimized GPU program that start no kernel.
NO_KERNEL = (
    *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "opt-barrier"),
    *("while", "conditional", "call", "after-all", "partition-id", "replica-id"),
)
_KERNEL = re.compile(r'op_name="[^"]*[/(]nystrom_(\w+)')
_KERNEL_BYTES = re.compile(r'"cost_estimate":\{[^}]*"bytes_accessed":"(\d+)"')
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')


def main() -> int:
    """Compiles the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.budgets", __doc__, 4)
    parser.add_argument("--profile", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.profile:
        topology, mode, length = given.profile
        print(json.dumps(profiled(topology, mode, int(length))))
        return 0
    import jax

    jax.config.update("jax_platforms", "cpu")
    if given.cell:
        topology, form, mode, length = given.cell
        print(json.dumps(cell(topology, form, mode, int(length))))
        return 0
    cells.require_topologies(parser, {topology for topology, _, _ in CASES})
    return cells.collect(
        "benchmarks.budgets",
        given.out,
        {"versions": cells.versions(*cells.COMPILERS)},
        ("topology", "form", "mode", "length"),
        [
            (topology, form, mode, str(length))
            for topology, forms, lengths in CASES
            for mode, length, form in itertools.product(MODES, lengths, forms)
        ],
        markdown=markdown,
    )


def cell(topology: str, form: str, mode: str, length: int) -> dict[str, Any]:
    """Returns the row of one form at one length."""
    from benchmarks.compiled import compile_ahead
    from nystromformer_jax.training.topology import chip_of, topology_devices

    chip = chip_of(topology)
    function, arguments, kept = program(form, mode, length, natural=chip.gpu is not None)
    compiled = compile_ahead(function, arguments, topology_devices(topology)[0])
    numbers = FLOOR[mode] * BATCH * HEADS * length * DIM
    row = {
        "topology": topology,
        "form": form,
        "mode": mode,
        "length": length,
        "fits": compiled.figures["fits"],
        "temp_bytes": compiled.figures["temp_bytes"],
        "kept_bytes": kept,
        "compile_seconds": compiled.figures["compile_seconds"],
        "floor_seconds": numbers * (4 if "float32" in form else 2) / chip.memory_rate,
        "kernels": None,
        "seconds": None,
    }
    if compiled.run is None:
        return row
    text = compiled.run.as_text() or ""
    if chip.gpu:
        seconds = compiled.figures["bytes_accessed"] / chip.memory_rate
        return {**row, "kernels": count_kernels(text), "seconds": seconds}
    seconds = (estimated_cycles(text) or 0) / chip.hertz
    if costs := kernel_costs(text):
        command = [sys.executable, "-m", "benchmarks.budgets", "--out=unused", "--profile"]
        child = [*command, topology, mode, str(length)]
        printed = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout
        cycles = json.loads(printed.splitlines()[-1])
        seconds += sum(
            max(cycles[name] / chip.hertz, nbytes / chip.memory_rate) for name, nbytes in costs
        )
    return {**row, "kernels": len(costs), "seconds": seconds}


def count_kernels(text: str) -> int:
    """Returns the number of kernels that a GPU program starts per run, from its `compiled.as_text()`.

    Each operation of the optimized program is a kernel, except those that compute nothing. Loops of known
    length are counted once per iteration.
    """
    return sum(
        times
        for times, _, name, fused in operations_of(text)
        if not (fused or name in NO_KERNEL or name.endswith("-done"))
    )


def estimated_cycles(text: str) -> int | None:
    """Returns the TPU compiler's estimate of the cycles of a program, loop iterations included.

    Returns None for devices whose compiler gives no estimate. Pallas kernels and waiting for other devices
    are not included.
    """
    cycles = [
        times * int(found[1])
        for times, operation, _, _ in operations_of(text)
        if (found := _CYCLES.search(operation))
    ]
    return sum(cycles) if cycles else None


def kernel_costs(text: str) -> list[tuple[str, int]]:
    """Returns name and declared bytes of each Pallas kernel in a TPU program."""
    return [
        (found[1] if (found := _KERNEL.search(operation)) else "", times * int(cost[1]))
        for times, operation, name, _ in operations_of(text)
        if name == "custom-call" and (cost := _KERNEL_BYTES.search(operation))
    ]


def program(
    form: str, mode: str, length: int, *, natural: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...], int]:
    """Returns the function, the shapes of its arguments, and the bytes of residuals besides its inputs.

    With `natural`, tokens are [B L H D].
    """
    import jax
    import jax.numpy as jnp

    from benchmarks.forms import form_of, with_gradient

    flat, dtype = form == "kernels", jnp.float32 if "float32" in form else jnp.bfloat16
    masked = "masked" in form
    shape: tuple[int, ...] = (BATCH, HEADS, length, DIM)
    if flat or natural:
        shape = (BATCH, length, HEADS * DIM) if flat else (BATCH, length, HEADS, DIM)
    tokens = jax.ShapeDtypeStruct(shape, dtype)
    kernel = jax.ShapeDtypeStruct((HEADS, WIDTH), jnp.float32)

    def forward(query: Any, key: Any, value: Any, conv_kernel: Any) -> Any:
        tokens = (query, key, value)
        if flat or natural:
            heads = [x.reshape(BATCH, length, HEADS, DIM) for x in tokens]
        else:
            heads = [x.swapaxes(1, 2) for x in tokens]
        # Not a constant, which would save some of its work.
        mask = jnp.isfinite(heads[0][..., 0, 0]) if masked else None
        output = form_of("plain" if masked else form.split()[0])(*heads, conv_kernel, mask)
        return output.reshape(query.shape) if flat or natural else output.swapaxes(1, 2)

    arguments = (tokens, tokens, tokens, kernel)
    _, pull_back = jax.eval_shape(lambda *x: jax.vjp(forward, *x), *arguments)
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull_back))
    if mode == "forward":
        return forward, arguments, 0
    inputs = 3 * tokens.size * tokens.dtype.itemsize
    return with_gradient(forward), (*arguments, tokens), kept - inputs


def profiled(topology: str, mode: str, length: int) -> dict[str, int]:
    """Returns the cycles of each kernel by libtpu's static profile, which is enabled when libtpu starts.

    Each kernel is compiled alone and without aliased operands, because the profile aborts the process for
    aliased operands and for some of XLA's own operations.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Appended, because `import jax` also sets flags.
        flags = os.environ.get("LIBTPU_INIT_ARGS", "")
        profile = f"--xla_jf_dump_static_llo_profile_to={folder}"
        os.environ["LIBTPU_INIT_ARGS"] = f"{flags} {profile}"
        import jax

        jax.config.update("jax_platforms", "cpu")
        from benchmarks.compiled import compile_ahead, for_device
        from nystromformer_jax.training.topology import topology_devices

        function, arguments, _ = program("kernels", mode, length)
        device = topology_devices(topology)[0]
        traced = jax.make_jaxpr(for_device(function, device))(*arguments)
        found = {}
        for equation in pallas_calls(traced.jaxpr):

            def alone(*arrays: Any, equation: Any = equation) -> Any:
                parameters = {**equation.params, "input_output_aliases": ()}
                return equation.primitive.bind(*arrays, **parameters)

            shapes = [jax.ShapeDtypeStruct(x.aval.shape, x.aval.dtype) for x in equation.invars]
            compile_ahead(alone, tuple(shapes), device)
            (file,) = Path(folder).glob("alone*.textproto")
            name = equation.params["name"].removeprefix("nystrom_")
            cycles = re.search(r"estimated_cycles: (\d+)", file.read_text(encoding="utf-8"))
            found[name] = int(cycles[1]) if cycles else 0
            file.unlink()
        return found


def pallas_calls(jaxpr: Any) -> Iterator[Any]:
    """Yields the equations of a traced program that call kernels, at any depth."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for parameter in equation.params.values():
            below = getattr(parameter, "jaxpr", parameter)
            if hasattr(below, "eqns"):
                yield from pallas_calls(below)


def markdown(results: dict[str, Any]) -> str:
    """Returns a table with a row per program; times are in µs, and in multiples of the floor."""
    rows = []
    chips = list(dict.fromkeys(row["topology"] for row in results["rows"]))
    for row in sorted(
        results["rows"],
        key=lambda row: (chips.index(row["topology"]), row["mode"], row["length"]),
    ):
        floor, seconds, temporaries = row["floor_seconds"], row["seconds"], row["temp_bytes"]
        time = "does not fit"
        if row["fits"]:
            time = f"{1e6 * seconds:,.0f} ({seconds / floor:.2f} × floor)"
        rows.append(
            {
                "chip": row["topology"].partition(":")[0],
                "attention": row["form"],
                "mode": row["mode"],
                "length": f"{row['length']:,}",
                "floor, µs": f"{1e6 * floor:,.0f}",
                "µs": time,
                "temporaries, MiB": "" if temporaries is None else f"{temporaries / MIB:,.1f}",
                "residuals, MiB": f"{row['kept_bytes'] / MIB:,.1f}" if row["kept_bytes"] else "",
                "kernels": str(row["kernels"] or ""),
            }
        )
    return markdown_table(rows)


if __name__ == "__main__":
    sys.exit(main())
