"""Correctness, attention and training steps on this machine's accelerator: `python -m benchmarks.on_device`.

1. The device's implementation of attention is compared with XLA in float32 on the CPU, forward and
   gradients, with and without a mask.
2. Attention by length: ours, plain jnp, exact by XLA and by cuDNN, and a literal port of other
   implementations; as modules with projections, ours and, if PyTorch supports the device, Hugging Face's.
   Times are medians of several rounds in turn, each of ten calls. The compiler gives the size of the
   temporaries and the number of kernels.
3. A training step of each of the five tasks of the benchmark, compared with Hugging Face's modules. On a GPU,
   both multiply float32 matrices in TensorFloat-32, the default of XLA.

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. FOLDER/results.json is written after
each measurement, the most informative ones first. The same command resumes. The row of a failed measurement
has the error; delete it to measure again.
"""

import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli.commands import parser_of, run_to_end
from nystromformer_jax.support.durable import write_json
from reporting.writer import path_argument

MODES = ("forward", "gradient")
CALLS = 10  # per timing, so that the device is not idle between calls
LENGTHS = (4096, 1024, 16_384, 512, 2048, 8192)  # the most informative ones first
CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder")
FORMS = ("ours", "ours, ridge", "plain", "literal", "exact", "cudnn", "our module")
OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|MemoryError|OutOfMemory|out of memory")
PARTS = ("checks", "attention", "steps")
TOY: dict[str, int] = {  # the sizes of steps and runs with --toy
    "data.examples": 60,
    "data.max_len": 64,
    "model.max_len": 64,
    "model.num_layers": 1,
    "attention.num_landmarks": 4,
    "train.batch_size": 8,
    "train.total_steps": 200,
    "optimizer.warmup_steps": 2,
    "eval.every_steps": 100,
}

Rows = list[dict[str, Any]]
Measurement = tuple[str, dict[str, Any]]  # a part and the keys that identify its rows


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
    from benchmarks import cells

    file = out / "results.json"
    peers = ("torch", "transformers") if torch_has_the_device() else ()
    machine = cells.this_machine(*peers)
    names = ("device", "device_count", "versions")  # the host may change between pieces
    settings = {**{name: machine[name] for name in names}, "toy": toy}
    results = cells.open_results(file, settings, lists=PARTS)
    cells.add_command(results, cells.command_line("benchmarks.on_device"))
    out.mkdir(parents=True, exist_ok=True)
    measure: dict[str, Callable[..., Rows]] = {
        "checks": check,
        "attention": attention,
        "steps": step,
    }
    for part, keys in missing(results, toy):
        try:
            found = measure[part](**keys, toy=toy)
        except Exception as error:  # such as a device without enough memory
            found = [{**keys, "error": _line(error)}]
        results[part] += found
        for row in found:
            print(json.dumps(row), flush=True)
        write_json(file, results)
    wrong = [row for part in PARTS for row in results[part] if not is_right(row)]
    for row in wrong:
        print(f"benchmarks.on_device: failed: {row}", file=sys.stderr)
    return int(bool(wrong))


def missing(rows: dict[str, Rows], toy: bool) -> list[Measurement]:
    """Returns the measurements without a row, the most informative ones first."""
    wanted: list[Measurement] = [
        ("checks", {"dtype": dtype, "masked": masked})
        for dtype in ("float32", "bfloat16")
        for masked in (False, True)
    ]
    timings: list[Measurement] = [
        ("attention", {"length": length, "mode": mode}) for length in LENGTHS for mode in MODES
    ]
    wanted += timings[: len(MODES)]
    wanted += [("steps", {"config": name}) for name in CONFIGS]
    wanted += timings[len(MODES) :]
    if toy:
        wanted = [
            ("checks", {"dtype": "float32", "masked": True}),
            ("attention", {"length": 128, "mode": "forward"}),
            ("steps", {"config": "listops"}),
        ]
    return [
        (part, keys)
        for part, keys in wanted
        if not any(keys.items() <= row.items() for row in rows[part])
    ]


def is_right(row: dict[str, Any]) -> bool:
    """Returns False for a check that failed or did not run, and for errors other than too little memory."""
    errors = [
        error for key, error in row.items() if key.endswith("error") and isinstance(error, str)
    ]
    return bool(row.get("passed", "dtype" not in row)) and all(map(OUT_OF_MEMORY.search, errors))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def check(dtype: str, masked: bool, toy: bool = False) -> Rows:
    """Returns the largest differences from XLA in float32 on the CPU.

    A difference is divided by the largest entry if that is greater than 1.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.forms import WIDTH, form_of, with_gradient

    random = np.random.default_rng(0)
    shape = (1, 100, 2, 64) if toy else (2, 1000, 4, 64)
    arrays = [jnp.asarray(random.normal(size=shape), dtype) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(shape[2], WIDTH)), jnp.float32)
    mask = jnp.asarray(random.random(shape[:2]) < 0.7) if masked else None

    def run(form: str, mask: Any, *arrays: Any) -> tuple[Any, Any]:
        real = True if mask is None else mask[..., None, None]
        attend = with_gradient(lambda *x: jnp.where(real, form_of(form)(*x, mask), 0))
        output: tuple[Any, Any] = attend(*arrays)
        return output

    arrays.insert(3, kernel)  # the last one is the cotangent
    float32 = [x.astype(jnp.float32) for x in arrays]
    with jax.default_matmul_precision("highest"):
        actual = run("ours", mask, *arrays)
        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu):  # some formulas depend on the default device
            expected = run("plain", *jax.device_put((mask, *float32), cpu))
    errors = [
        np.abs(np.asarray(one, np.float32) - other).max() / max(1.0, np.abs(other).max())
        for one, other in zip(
            jax.tree.leaves(actual), map(np.asarray, jax.tree.leaves(expected)), strict=True
        )
    ]
    forward, *gradients = [float(error) for error in errors]
    gradient = float(np.max(gradients))  # NaN if any is
    allowed = [1e-5, 1e-5] if dtype == "float32" else [1e-2, 3e-2]
    row = {
        "dtype": dtype,
        "masked": masked,
        "forward_error": forward,
        "gradient_error": gradient,
        "passed": forward <= allowed[0] and gradient <= allowed[1],
    }
    return [row]


def attention(length: int, mode: str, toy: bool = False) -> Rows:
    """Returns a row for every form of attention at one length."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.forms import BATCH, DIM, HEADS, WIDTH, our_module
    from benchmarks.timing import in_blocks

    random = np.random.default_rng(0)
    batch, repeats = (1, 1) if toy else (BATCH, 9)
    shape = (batch, length, HEADS, DIM)
    tokens = [jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(HEADS, WIDTH)), jnp.float32)
    cotangent = tokens[3:] * (mode == "gradient")
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, Callable[[], Any]] = {}
    forms = [form for form in FORMS if form != "cudnn" or jax.default_backend() == "gpu"]
    for form in [*forms, *["Hugging Face"] * torch_has_the_device()]:
        row = rows[form] = {"form": form, "mode": mode, "batch": batch, "length": length}
        try:
            if form == "Hugging Face":
                case = huggingface_calls(batch, length, mode)
            else:
                inputs: tuple[Any, ...] = (*tokens[:3], kernel, None, *cotangent)
                if form == "our module":
                    x = tokens[0].reshape(*shape[:2], -1)
                    module = our_module(dtype=jnp.bfloat16)
                    params = module.init(jax.random.key(0), x, deterministic=True)
                    inputs = (params, x, *(y.reshape(x.shape) for y in cotangent))
                figures, case = _compiled(form, mode, inputs)
                row |= figures
            jax.block_until_ready(case())
        except Exception as error:  # one form may need too much memory
            row["error"] = _line(error)
        else:
            cases[form] = case
    for form, times in in_blocks(cases, rounds=repeats).items():
        rows[form]["seconds"] = times["median"] / CALLS
    return list(rows.values())


def _compiled(
    form: str, mode: str, arguments: tuple[Any, ...]
) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Returns the compiler's figures of a form of attention, and a function that calls it."""
    import functools

    import jax
    import jax.numpy as jnp

    from benchmarks.budgets import count_kernels
    from benchmarks.compiled import compile_ahead
    from benchmarks.forms import form_of, our_module, with_gradient

    function = form_of(form, mode)
    if form == "our module":
        function = functools.partial(our_module(dtype=jnp.bfloat16).apply, deterministic=True)
        function = with_gradient(function) if mode == "gradient" else function
    compiled = compile_ahead(function, arguments, jax.devices()[0])
    if (program := compiled.run) is None:
        raise MemoryError(compiled.figures["reason"])
    figures = {
        "temp_bytes": compiled.figures["temp_bytes"],
        "kernels": count_kernels(program.as_text() or ""),
    }
    return figures, lambda: [program(*arguments) for _ in range(CALLS)][-1]


def huggingface_calls(
    batch: int, length: int, mode: str, device: str = "cuda"
) -> Callable[[], Any]:
    """Returns calls of Hugging Face's module with its projections, in mixed precision.

    The module raises an error if its parameters are bfloat16, because its pseudoinverse mixes dtypes.
    """
    import torch

    from benchmarks import peers
    from benchmarks.forms import DIM, HEADS, LANDMARKS, WIDTH

    width = HEADS * DIM
    module = peers.huggingface(width, HEADS, length, LANDMARKS, WIDTH)
    module = module.to(device)
    x = torch.randn(
        batch, length, width, device=device, dtype=torch.bfloat16, requires_grad=mode == "gradient"
    )

    def run() -> None:
        for _ in range(CALLS):
            with (
                torch.set_grad_enabled(mode == "gradient"),
                torch.autocast(device, torch.bfloat16),
            ):
                output = module(x, None)
            if mode == "gradient":
                torch.autograd.grad(output, [x, *module.parameters()], x, allow_unused=True)
        if x.is_cuda:
            torch.cuda.synchronize()

    return run


def step(config: str, toy: bool = False) -> Rows:
    """Times a config's training step, and that of Hugging Face's modules if PyTorch has a GPU."""
    from benchmarks import steps

    values = steps.config_of(config)
    for key, value in TOY.items() if toy else ():
        section, name = key.split(".")
        values[section][name] = value
    device = "cuda" if torch_has_the_device() else ""
    if device:
        import torch

        torch.set_float32_matmul_precision("high")
    found = steps.compare(values, 1 if toy else 9, device)
    times = {
        name: times["median"] if isinstance(times, dict) else times for name, times in found.items()
    }
    return [{"config": config, **times}]


def torch_has_the_device() -> bool:
    """Returns True if the packages of `benchmarks.peers` are installed, and PyTorch has a GPU."""
    if not all(map(importlib.util.find_spec, ("torch", "transformers", "nystrom_attention"))):
        return False
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
