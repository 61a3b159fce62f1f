"""Correctness, attention and training steps on this machine's accelerator: `python -m benchmarks.on_device`.

1. The device's implementation of attention is compared with XLA in float32 on the CPU, forward and
   gradients, with and without a mask.
2. Attention by length: ours, plain jnp, exact by XLA and by cuDNN, and a literal port of other
   implementations; as modules with projections, ours and, if PyTorch supports the device, Hugging Face's.
   Times are medians of nine rounds of blocks, in turn, each of ten calls. The compiler gives the size of the
   temporaries.
3. A training step of each of the five tasks of the benchmark, compared with Hugging Face's modules. On a GPU,
   both multiply float32 matrices in TensorFloat-32, the default of XLA.

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. FOLDER/results.json is written after
each measurement, the most informative ones first. The same command resumes. The row of a failed measurement
has the error; delete it to measure again.
"""

import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.attention import BATCH, MODES, WIDTH, attend, case, with_gradient
from benchmarks.compiled import compile_ahead
from benchmarks.steps import compare, config_of
from benchmarks.table import Row, Table, this_machine
from benchmarks.timing import in_blocks
from cli.commands import parser_of, run_to_end
from reporting.writer import path_argument

CALLS = 10  # per timing, so that the device is not idle between calls
LENGTHS = (4096, 1024, 16_384, 512, 2048, 8192)  # the most informative ones first
CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder")
FORMS = ("ours", "ours, ridge", "plain", "literal", "exact", "cudnn", "our module", "Hugging Face")
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|MemoryError|OutOfMemory|out of memory")
PARTS = ("checks", "attention", "steps")
TOY: dict[str, dict[str, int]] = {  # the sizes of steps with --toy
    "data": {"examples": 60, "max_len": 64},
    "model": {"max_len": 64, "num_layers": 1},
    "attention": {"num_landmarks": 4},
    "train": {"batch_size": 8, "total_steps": 200},
    "optimizer": {"warmup_steps": 2},
    "eval": {"every_steps": 100},
}


def main() -> int:
    """Measures what is missing and returns the exit code."""
    parser = parser_of("benchmarks.on_device", __doc__)
    parser.add_argument("--out", type=path_argument, required=True, help="folder of results.json")
    parser.add_argument("--toy", action="store_true", help="tiny sizes, to try the program")
    given = parser.parse_args()
    # Otherwise JAX reserves most of the memory, of which PyTorch needs some.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return run_to_end("benchmarks.on_device", lambda: _measure(given.out, given.toy))


def _measure(out: Path, toy: bool) -> int:
    """Measures what is missing; returns 1 if a check failed."""
    peers = ("torch", "transformers") if torch_has_the_device() else ()
    machine = this_machine(*peers)
    names = ("device", "device_count", "versions")  # the host may change between pieces
    settings = {**{name: machine[name] for name in names}, "toy": toy}
    table = Table("benchmarks.on_device", out / "results", settings, parts=PARTS)
    absent = {"cudnn": jax.default_backend() != "gpu", "Hugging Face": not peers}
    forms = [form for form in FORMS if not absent.get(form)]

    def fill(part: str, axes: str, *values: Sequence[Any]) -> None:
        def measure(*cell: Any) -> Row | list[Row]:
            if part == "attention":
                return attention(toy, *cell)
            row = dict(zip(axes.split(), cell, strict=True))
            return or_error(row, check if part == "checks" else step, toy, *cell)

        cells, peers = itertools.product(*values), part == "attention"
        table.fill(axes.split(), cells, measure, part=part, peers=peers)

    if toy:
        fill("checks", "dtype masked", ["float32"], [True])
        fill("attention", "length mode form", [128], ["forward"], forms)
        fill("steps", "config", ["listops"])
    else:
        fill("checks", "dtype masked", ["float32", "bfloat16"], [False, True])
        fill("attention", "length mode form", LENGTHS[:1], MODES, forms)
        fill("steps", "config", CONFIGS)
        fill("attention", "length mode form", LENGTHS[1:], MODES, forms)
    wrong = [row for part in PARTS for row in table.results[part] if not is_right(row)]
    for row in wrong:
        print(f"benchmarks.on_device: failed: {row}", file=sys.stderr)
    return int(bool(wrong))


def is_right(row: Row) -> bool:
    """Returns False for a check that failed or did not run, and for errors other than too little memory."""
    errors = [
        error for key, error in row.items() if key.endswith("error") and isinstance(error, str)
    ]
    return bool(row.get("passed", "dtype" not in row)) and all(map(OUT_OF_MEMORY.search, errors))


def or_error(row: Row, measure: Callable[..., Row], *arguments: Any) -> Row:
    """Returns a row with what `measure` returns, or with its error."""
    try:
        return row | measure(*arguments)
    except Exception as error:  # such as a device without enough memory
        return {**row, "error": f"{type(error).__name__}: {error}".splitlines()[0]}


def check(toy: bool, dtype: str, masked: bool) -> Row:
    """Returns the errors relative to XLA in float32 on the CPU.

    A difference is divided by the largest entry if that is greater than 1.
    """
    random = np.random.default_rng(0)
    shape = (1, 100, 2, 64) if toy else (2, 1000, 4, 64)
    arrays = [jnp.asarray(random.normal(size=shape), dtype) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(shape[2], WIDTH)), jnp.float32)
    arrays.insert(3, kernel)  # the last one is the cotangent
    mask = jnp.asarray(random.random(shape[:2]) < 0.7) if masked else None

    def run(form: str, mask: Any, *arrays: Any) -> tuple[Any, Any]:
        real = True if mask is None else mask[..., None, None]
        return with_gradient(lambda *x: jnp.where(real, attend(form, *x), 0))(mask, *arrays)

    float32 = [x.astype(jnp.float32) for x in arrays]
    with jax.default_matmul_precision("highest"):
        actual = run("ours", mask, *arrays)
        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu):  # some formulas depend on the default device
            expected = run("plain", *jax.device_put((mask, *float32), cpu))
    forward, *gradients = (
        float(np.abs(np.asarray(one, np.float32) - other).max() / max(1.0, np.abs(other).max()))
        for one, other in zip(
            jax.tree.leaves(actual), map(np.asarray, jax.tree.leaves(expected)), strict=True
        )
    )
    gradient = float(np.max(gradients))  # NaN if any is
    allowed = (1e-5, 1e-5) if dtype == "float32" else (1e-2, 3e-2)
    return {
        "forward_error": forward,
        "gradient_error": gradient,
        "passed": forward <= allowed[0] and gradient <= allowed[1],
    }


def attention(toy: bool, length: int, mode: str, forms: Sequence[str]) -> list[Row]:
    """Returns a row for every form of attention at one length, timed in blocks in turn."""
    batch, rounds = (1, 1) if toy else (BATCH, 9)
    calls: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Row] = {}
    for form in forms:
        row: Row = {"form": form, "mode": mode, "batch": batch, "length": length}
        rows[form] = or_error(row, _prepare, calls, form, mode, batch, length)
    for form, times in in_blocks(calls, rounds=rounds).items():
        rows[form]["seconds"] = times["median"] / CALLS
    return list(rows.values())


def _prepare(
    calls: dict[str, Callable[[], Any]], form: str, mode: str, batch: int, length: int
) -> Row:
    """Compiles `CALLS` calls of a form into `calls[form]`; returns the compiler's figures."""
    sizes: dict[str, Any] = {"batch": batch, "length": length, "conv": WIDTH}
    if form == "Hugging Face":
        from benchmarks import peers

        call = peers.call_of(form, mode, **sizes, device="cuda", half=True, calls=CALLS)
        call()
        calls[form] = call
        return {}
    function, inputs = case(form, mode, **sizes, dtype=jnp.bfloat16)
    program = compile_ahead(function, inputs, jax.devices()[0])
    if program.run is None:
        raise MemoryError(program.reason)
    jax.block_until_ready(program.run(*inputs))
    calls[form] = lambda: [program.run(*inputs) for _ in range(CALLS)][-1]
    return {"temp_bytes": program.temp_bytes}


def step(toy: bool, config: str) -> Row:
    """Times a config's training step beside that of Hugging Face's modules."""
    values = config_of(config)
    for section, changes in TOY.items() if toy else ():
        values[section] |= changes
    device = "cuda" if torch_has_the_device() else ""
    if device:
        import torch

        torch.set_float32_matmul_precision("high")
    found = compare(values, 1 if toy else 9, device)
    return {name: x["median"] if isinstance(x, dict) else x for name, x in found.items()}


def torch_has_the_device() -> bool:
    """Returns True if the packages of `benchmarks.peers` are installed, and PyTorch has a GPU."""
    if not all(map(importlib.util.find_spec, ("torch", "transformers", "nystrom_attention"))):
        return False
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
