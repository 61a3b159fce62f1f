"""Memory, kernels and cycles of attention on a TPU, estimated by its compiler without a TPU.

    python -m benchmarks.budget --out results/budget/tpu

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. Our kernels are compared with our plain
form, a literal port of other implementations, and exact attention. The kernels take [B L E] from the
projections, the others their fastest layout, [B H L D]. Times are estimates. For a kernel, the time is the
larger of the cycles in the compiler's static profile and its bytes over the memory bandwidth. For all other
operations it is the compiler's estimate. The floor is the time to read and write 7 L D numbers per head
forward, or 17 with the gradient.
Needs libtpu (extra `plan`). The table is rewritten after every cell; the same command resumes.
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

import pandas as pd

from benchmarks import cells, stored
from reporting.tables import markdown as markdown_table

BATCH, HEADS, DIM, LANDMARKS, WIDTH = 8, 8, 64, 64, 33
FORMS = ("kernels", "plain", "literal", "exact")
MODES = ("forward", "gradient")
# Lengths at which all forms are compiled, by topology, and further cells of the kernels alone.
LENGTHS = {"v5e:1x1": (4096, 16_384), "v5p:1x1x1": (4096, 16_384), "v6e:1x1": (4096,)}
MORE = (
    ("v5e:1x1", "forward", 512),
    ("v5e:1x1", "gradient", 512),
    ("v5e:1x1", "forward", 131_072),
    ("v6e:1x1", "forward", 16_384),
    ("v6e:1x1", "gradient", 16_384),
)
FLOOR = {"forward": 7, "gradient": 17}  # arrays of L D numbers per head that are read or written
MIB = 2**20


def main() -> int:
    """Compiles the missing cells and returns the exit code."""
    parser = cells.parser_for("benchmarks.budget", __doc__, 4)
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
    cells.require_topologies(parser, LENGTHS)
    return cells.collect(
        "benchmarks.budget",
        given.out,
        {"versions": stored.versions(*stored.COMPILERS)},
        ("topology", "form", "mode", "length"),
        cases(),
        markdown=markdown,
    )


def cases() -> list[tuple[str, ...]]:
    """Returns the cells of the table: topology, form, mode and length."""
    compared = [
        (topology, form, mode, str(length))
        for topology, lengths in LENGTHS.items()
        for form, mode, length in itertools.product(FORMS, MODES, lengths)
    ]
    return [
        *compared,
        *((topology, "kernels", mode, str(length)) for topology, mode, length in MORE),
    ]


def cell(topology: str, form: str, mode: str, length: int) -> dict[str, Any]:
    """Returns the row of one form at one length."""
    from benchmarks.compiled import compile_ahead
    from nystromformer_jax.training.planning.hlo import estimated_cycles, kernel_costs
    from nystromformer_jax.training.topology import chip_of, topology_devices

    chip = chip_of(topology)
    function, arguments, kept = program(form, mode, length)
    compiled = compile_ahead(function, arguments, topology_devices(topology)[0])
    row = {
        "topology": topology,
        "form": form,
        "mode": mode,
        "length": length,
        "fits": compiled.figures["fits"],
        "temp_bytes": compiled.figures["temp_bytes"],
        "kept_bytes": kept,
        "compile_seconds": compiled.figures["compile_seconds"],
        "floor_seconds": FLOOR[mode] * BATCH * HEADS * length * DIM * 2 / chip.memory_rate,
    }
    if compiled.run is None:
        return row
    text = compiled.run.as_text() or ""
    costs = kernel_costs(text)
    rest = (estimated_cycles(text) or 0) / chip.hertz
    kernels = []
    if costs:
        child = [
            sys.executable,
            "-m",
            "benchmarks.budget",
            "--out=unused",
            "--profile",
            topology,
            mode,
            str(length),
        ]
        printed = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout
        cycles = json.loads(printed.splitlines()[-1])
        kernels = [
            {
                "name": name,
                "static_seconds": cycles[name] / chip.hertz,
                "memory_seconds": nbytes / chip.memory_rate,
            }
            for name, nbytes in costs
        ]
    times = [max(kernel["static_seconds"], kernel["memory_seconds"]) for kernel in kernels]
    return {**row, "kernels": kernels, "rest_seconds": rest, "seconds": sum(times) + rest}


def program(form: str, mode: str, length: int) -> tuple[Callable[..., Any], tuple[Any, ...], int]:
    """Returns the function, the shapes of its arguments, and the bytes of residuals besides its inputs."""
    import jax
    import jax.numpy as jnp

    from benchmarks.gradient import with_gradient
    from benchmarks.literal import literal_attention
    from nystromformer_jax import nystrom_attention, softmax_attention

    flat = form == "kernels"
    shape = (BATCH, length, HEADS * DIM) if flat else (BATCH, HEADS, length, DIM)
    tokens = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    kernel = jax.ShapeDtypeStruct((HEADS, WIDTH), jnp.float32)

    def forward(query: Any, key: Any, value: Any, conv_kernel: Any) -> Any:
        tokens = (query, key, value)
        if flat:
            heads = [x.reshape(BATCH, length, HEADS, DIM) for x in tokens]
        else:
            heads = [x.swapaxes(1, 2) for x in tokens]
        if form == "literal":
            output = literal_attention(heads[0], heads[1], heads[2], conv_kernel, LANDMARKS)
        elif form == "exact":
            output = softmax_attention(*heads)
        else:
            output = nystrom_attention(
                *heads,
                num_landmarks=LANDMARKS,
                conv_kernel=conv_kernel,
                implementation="pallas_tpu" if form == "kernels" else "xla",
            )
        return output.reshape(query.shape) if flat else output.swapaxes(1, 2)

    arguments = (tokens, tokens, tokens, kernel)
    _, pull_back = jax.eval_shape(lambda *x: jax.vjp(forward, *x), *arguments)
    kept = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pull_back))
    if mode == "forward":
        return forward, arguments, 0
    return with_gradient(forward), (*arguments, tokens), kept - 3 * tokens.size * 2


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
    """Returns a table: topologies, modes and lengths in rows, forms in columns."""
    rows = {
        (row["topology"], row["mode"], row["length"], row["form"]): row for row in results["rows"]
    }
    columns = ["chip", "", "length", "floor, µs", "kernels: µs", "× floor"]
    columns += ["temporaries, MiB", "residuals, MiB"]
    for form in ("plain", "literal port", "exact"):
        columns += [f"{form}: µs", "temporaries, MiB"]
    table = []
    for topology, mode, length in dict.fromkeys(key[:3] for key in rows):
        found = {form: rows.get((topology, mode, length, form)) for form in FORMS}
        kernels = found["kernels"]
        if kernels is None:
            continue
        floor, seconds, temporaries = (
            kernels.get(key) for key in ("floor_seconds", "seconds", "temp_bytes")
        )
        parts = [
            topology.partition(":")[0],
            mode,
            f"{length:,}",
            f"{1e6 * floor:,.0f}",
            "does not fit" if seconds is None else f"{1e6 * seconds:,.0f}",
            "" if seconds is None else f"{seconds / floor:.2f}",
            "" if temporaries is None else f"{temporaries / MIB:,.1f}",
            f"{kernels['kept_bytes'] / MIB:,.1f}" if mode == "gradient" else "",
        ]
        for form in FORMS[1:]:
            parts += _time_and_memory(found[form], kernels)
        table.append(parts)
    return markdown_table(pd.DataFrame(table, columns=columns))


def _time_and_memory(row: dict[str, Any] | None, kernels: dict[str, Any]) -> list[str]:
    if row is None:
        return ["", ""]
    temporaries = "" if row["temp_bytes"] is None else f"{row['temp_bytes'] / MIB:,.0f}"
    if not row["fits"]:
        return ["does not fit", temporaries]
    ratio = f" ({row['seconds'] / kernels['seconds']:.1f}×)" if kernels["fits"] else ""
    return [f"{1e6 * row['seconds']:,.0f}{ratio}", temporaries]


if __name__ == "__main__":
    sys.exit(main())
