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

from benchmarks import budget
from command import parser_of, run_to_end
from nystromformer_jax.durable import read_json, write_json
from reporting.writer import path_argument

CALLS = 10  # per timing, so that the device is not idle between calls
LENGTHS = (4096, 1024, 16_384, 512, 2048, 8192)  # the most informative ones first
CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder")
FORMS = ("ours", "plain", "literal", "exact", "cudnn", "our module")
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


def _measure(out: Path, toy: bool) -> None:
    from benchmarks import stored

    file = out / "results.json"
    peers = ("torch", "transformers") if torch_has_the_device() else ()
    machine = stored.this_machine(*peers)
    names = ("device", "device_count", "versions")  # the host may change between pieces
    settings = {**{name: machine[name] for name in names}, "toy": toy}
    results = stored.open_results(file, settings, lists=PARTS)
    stored.add_command(results, stored.command_line("benchmarks.on_device"))
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


def read_rows(out: Path) -> dict[str, Rows]:
    """Returns the rows of every part in `out`/results.json."""
    file = out / "results.json"
    results = read_json(file) if file.is_file() else {}
    return {part: results.get(part, []) for part in PARTS}


def missing(rows: dict[str, Rows], toy: bool) -> list[Measurement]:
    """Returns the measurements without a row, the most informative ones first."""
    wanted: list[Measurement] = [
        ("checks", {"dtype": dtype, "masked": masked})
        for dtype in ("float32", "bfloat16")
        for masked in (False, True)
    ]
    timings: list[Measurement] = [
        ("attention", {"length": length, "mode": mode})
        for length in LENGTHS
        for mode in budget.MODES
    ]
    wanted += timings[: len(budget.MODES)]
    wanted += [("steps", {"config": name}) for name in CONFIGS]
    wanted += timings[len(budget.MODES) :]
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

    from benchmarks.gradient import with_gradient
    from nystromformer_jax import nystrom_attention

    random = np.random.default_rng(0)
    shape = (1, 100, 2, 64) if toy else (2, 1000, 4, 64)
    arrays = [jnp.asarray(random.normal(size=shape), dtype) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(shape[2], budget.WIDTH)), jnp.float32)
    mask = jnp.asarray(random.random(shape[:2]) < 0.7) if masked else None

    def run(implementation: Any, mask: Any, *arrays: Any) -> tuple[Any, Any]:
        real = True if mask is None else mask[..., None, None]

        def attend(query: Any, key: Any, value: Any, kernel: Any) -> Any:
            output = nystrom_attention(
                query,
                key,
                value,
                num_landmarks=budget.LANDMARKS,
                mask=mask,
                conv_kernel=kernel,
                implementation=implementation,
            )
            return jnp.where(real, output, 0)

        output: tuple[Any, Any] = with_gradient(attend)(*arrays)
        return output

    arrays.insert(3, kernel)  # the last one is the cotangent
    float32 = [x.astype(jnp.float32) for x in arrays]
    with jax.default_matmul_precision("highest"):
        actual = run("auto", mask, *arrays)
        cpu = jax.devices("cpu")[0]
        with jax.default_device(cpu):  # some formulas depend on the default device
            expected = run("xla", *jax.device_put((mask, *float32), cpu))
    errors = [
        np.abs(np.asarray(one, np.float32) - other).max() / max(1.0, np.abs(other).max())
        for one, other in zip(
            jax.tree.leaves(actual), map(np.asarray, jax.tree.leaves(expected)), strict=True
        )
    ]
    errors = [float(error) for error in errors]
    allowed = [1e-5, 1e-5] if dtype == "float32" else [1e-2, 3e-2]
    row = {
        "dtype": dtype,
        "masked": masked,
        "forward_error": errors[0],
        "gradient_error": max(errors[1:]),
        "passed": errors[0] <= allowed[0] and max(errors[1:]) <= allowed[1],
    }
    return [row]


def attention(length: int, mode: str, toy: bool = False) -> Rows:
    """Returns a row for every form of attention at one length."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.timing import in_blocks

    random = np.random.default_rng(0)
    batch, repeats = (1, 1) if toy else (budget.BATCH, 9)
    shape = (batch, length, budget.HEADS, budget.DIM)
    tokens = [jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(budget.HEADS, budget.WIDTH)), jnp.float32)
    cotangent = tokens[3:] * (mode == "gradient")
    arguments = (*tokens[:3], kernel, *cotangent)
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, Callable[[], Any]] = {}
    forms = [form for form in FORMS if form != "cudnn" or jax.default_backend() == "gpu"]
    for form in [*forms, *["Hugging Face"] * torch_has_the_device()]:
        row = rows[form] = {"form": form, "mode": mode, "batch": batch, "length": length}
        try:
            if form == "Hugging Face":
                case = huggingface_calls(batch, length, mode)
            else:
                inputs = arguments
                if form == "our module":
                    x = tokens[0].reshape(*shape[:2], -1)
                    params = _module().init(jax.random.key(0), x, deterministic=True)
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
    import jax

    from benchmarks.compiled import compile_ahead
    from benchmarks.gradient import with_gradient
    from nystromformer_jax.training.planning.hlo import find_launches

    function = with_gradient(_forward(form)) if mode == "gradient" else _forward(form)
    compiled = compile_ahead(function, arguments, jax.devices()[0])
    if (program := compiled.run) is None:
        raise MemoryError(compiled.figures["reason"])
    figures = {
        "temp_bytes": compiled.figures["temp_bytes"],
        "kernels": find_launches(program.as_text() or "").count,
    }
    return figures, lambda: [program(*arguments) for _ in range(CALLS)][-1]


def _module() -> Any:
    """Returns our module with its projections, with the sizes of Hugging Face's, in bfloat16."""
    import jax.numpy as jnp

    from nystromformer_jax import SelfAttention, make_core

    core = make_core("nystrom", num_landmarks=budget.LANDMARKS, conv_kernel_size=budget.WIDTH)
    return SelfAttention(budget.HEADS, core, dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)


def _forward(form: str) -> Callable[..., Any]:
    import functools

    import jax

    from benchmarks.literal import literal_attention
    from nystromformer_jax import nystrom_attention, softmax_attention

    if form == "our module":
        return functools.partial(_module().apply, deterministic=True)

    def forward(query: Any, key: Any, value: Any, kernel: Any) -> Any:
        if form == "literal":
            return literal_attention(query, key, value, kernel, budget.LANDMARKS)
        if form == "exact":
            return softmax_attention(query, key, value)
        if form == "cudnn":
            return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")
        return nystrom_attention(
            query,
            key,
            value,
            num_landmarks=budget.LANDMARKS,
            conv_kernel=kernel,
            implementation="auto" if form == "ours" else "xla",
        )

    return forward


def huggingface_calls(
    batch: int, length: int, mode: str, device: str = "cuda"
) -> Callable[[], Any]:
    """Returns calls of Hugging Face's module with its projections, in mixed precision.

    The module raises an error if its parameters are bfloat16, because its pseudoinverse mixes dtypes.
    """
    import torch

    from benchmarks import peers

    width = budget.HEADS * budget.DIM
    module = peers.huggingface(width, budget.HEADS, length, budget.LANDMARKS, budget.WIDTH)
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
    from benchmarks import tasks, training_step
    from benchmarks.timing import in_blocks
    from lra import train

    values = importlib.import_module(f"configs.{config}").get_config().to_dict()
    for key, value in TOY.items() if toy else ():
        section, name = key.split(".")
        values[section][name] = value
    run = train.prepare(values)
    batch = tasks.random_batch(run)
    cases: dict[str, Callable[[], Any]] = {"ours": training_step.our_step(run, batch)}
    row: dict[str, Any] = {"config": config}
    if "inputs" in batch and torch_has_the_device():  # Hugging Face has no classifier of pairs
        try:
            import torch

            from benchmarks import peers

            torch.set_float32_matmul_precision("high")
            sizes = values["attention"]["num_landmarks"], values["attention"]["conv_kernel_size"]
            model = peers.Classifier(run.model.config, run.model.num_classes, *sizes)
            peer = peers.training_step(model, batch, "cuda")
            peer()
        except Exception as error:  # our step is measured all the same
            row["Hugging Face, error"] = _line(error)
        else:
            cases["Hugging Face"] = peer
    times = in_blocks(cases, rounds=1 if toy else 9)
    return [row | {case: found["median"] for case, found in times.items()}]


def torch_has_the_device() -> bool:
    """Returns True if the packages of `benchmarks.peers` are installed, and PyTorch has a GPU."""
    if not all(map(importlib.util.find_spec, ("torch", "transformers", "nystrom_attention"))):
        return False
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
