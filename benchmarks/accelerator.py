"""Checks and timings on this machine's accelerator.

    python -m benchmarks.accelerator --out results/benchmarks/h200

1. The device's implementation of attention is compared with XLA in float32 on the CPU, forward and
   gradients, with and without a mask.
2. Attention by length: ours, plain jnp, exact by XLA and by cuDNN, a literal port of other implementations,
   and Hugging Face's module if PyTorch supports the device. Medians of several rounds in turn, each of ten
   calls; temporaries by the compiler, and the number of kernels launched.
3. A training step of every config of the benchmark, beside Hugging Face's modules.

Batch 8, 8 heads of 64, 64 landmarks, a convolution of 33, bfloat16. The results are written after every row.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import budget

CALLS = 10  # per timing, so that the device is not idle between calls
CONFIGS = ("listops", "text", "retrieval", "image", "pathfinder")
FORMS = ("ours", "plain", "literal", "exact", "cudnn")
LAUNCHES = re.compile(
    r" (?:fusion|custom-call|copy|convolution|dot|reduce|transpose|while|conditional)\("
)


def main() -> int:
    """Checks and times attention and training steps; returns the exit code, 1 if a check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, default=budget.BATCH)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192, 16_384]
    )
    parser.add_argument("--configs", nargs="*", default=CONFIGS, choices=CONFIGS)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--out", type=Path, required=True, help="where to write, without a file ending"
    )
    given = parser.parse_args()
    import jax

    from nystromformer_jax.training import describe_environment, write_json

    results: dict[str, Any] = {
        "environment": describe_environment(),
        "device": jax.devices()[0].device_kind,
        "command": " ".join(["python -m benchmarks.accelerator", *sys.argv[1:]]),
        "checks": [],
        "attention": [],
        "steps": [],
    }

    def keep(part: str, row: dict[str, Any]) -> None:
        results[part].append(row)
        print(json.dumps(row), flush=True)
        write_json(Path(f"{given.out}.json"), results)

    given.out.parent.mkdir(parents=True, exist_ok=True)
    for dtype in ("float32", "bfloat16"):
        for masked in (False, True):
            keep("checks", check(dtype, masked))
    for length in given.lengths:
        for mode in budget.MODES:
            for row in attention(given.batch, length, mode, given.repeats):
                keep("attention", row)
    for name in given.configs:
        keep("steps", step(name, given.repeats))
    return 0 if all(row["passed"] for row in results["checks"]) else 1


def check(dtype: str, masked: bool) -> dict[str, Any]:
    """Returns the largest differences from XLA in float32 on the CPU, relative to its largest entry."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.gradient import with_gradient
    from nystromformer_jax import nystrom_attention

    random = np.random.default_rng(0)
    arrays = [jnp.asarray(random.normal(size=(2, 1000, 4, 64)), dtype) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(4, budget.WIDTH)), jnp.float32)
    mask = jnp.asarray(random.random((2, 1000)) < 0.7) if masked else None

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
        expected = run("xla", *jax.device_put((mask, *float32), jax.devices("cpu")[0]))
    errors = [
        np.abs(np.asarray(one, np.float32) - other).max() / max(1.0, np.abs(other).max())
        for one, other in zip(
            jax.tree.leaves(actual), map(np.asarray, jax.tree.leaves(expected)), strict=True
        )
    ]
    errors = [float(error) for error in errors]
    allowed = [1e-5, 1e-5] if dtype == "float32" else [1e-2, 3e-2]
    return {
        "dtype": dtype,
        "masked": masked,
        "forward_error": errors[0],
        "gradient_error": max(errors[1:]),
        "passed": errors[0] <= allowed[0] and max(errors[1:]) <= allowed[1],
    }


def attention(batch: int, length: int, mode: str, repeats: int) -> list[dict[str, Any]]:
    """Returns a row for every form of attention at one length."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.compiled import compile_ahead
    from benchmarks.gradient import with_gradient
    from benchmarks.timing import interleaved

    random = np.random.default_rng(0)
    shape = (batch, length, budget.HEADS, budget.DIM)
    tokens = [jnp.asarray(random.normal(size=shape), jnp.bfloat16) for _ in range(4)]
    kernel = jnp.asarray(random.normal(size=(budget.HEADS, budget.WIDTH)), jnp.float32)
    rows: dict[str, dict[str, Any]] = {}
    cases: dict[str, Callable[[], Any]] = {}
    for form in FORMS:
        row = rows[form] = {"form": form, "mode": mode, "batch": batch, "length": length}
        if form == "cudnn" and jax.default_backend() != "gpu":
            del rows[form]
            continue
        forward = _forward(form)
        arguments = (*tokens[:3], kernel)
        function = forward
        if mode == "gradient":
            arguments = (*arguments, tokens[3])
            function = with_gradient(forward)
        compiled = compile_ahead(function, arguments, jax.devices()[0])
        row["temp_bytes"] = compiled.figures["temp_bytes"]
        if compiled.run is None:
            row["reason"] = compiled.figures["reason"]
            continue
        text = compiled.run.as_text() or ""
        row["kernels"] = len(LAUNCHES.findall(text[text.index("\nENTRY") :]))
        cases[form] = _repeated(compiled.run, arguments)
    if (peer := _huggingface(batch, length, mode)) is not None:
        rows["Hugging Face"] = {
            "form": "Hugging Face",
            "mode": mode,
            "batch": batch,
            "length": length,
        }
        cases["Hugging Face"] = peer
    for form, times in interleaved(cases, repeats=repeats).items():
        rows[form]["seconds"] = times["median"] / CALLS
    return list(rows.values())


def _forward(form: str) -> Callable[..., Any]:
    import jax

    from benchmarks.literal import literal_attention
    from nystromformer_jax import nystrom_attention, softmax_attention

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


def _repeated(run: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: [run(*arguments) for _ in range(CALLS)][-1]


def _huggingface(batch: int, length: int, mode: str) -> Callable[[], Any] | None:
    """Returns a call of Hugging Face's module with its projections; None if PyTorch has no GPU."""
    if not _torch_has_the_device():
        return None
    import torch

    from benchmarks import peers

    width = budget.HEADS * budget.DIM
    module = peers.huggingface(width, budget.HEADS, length, budget.LANDMARKS, budget.WIDTH)
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(
        batch, length, width, device="cuda", dtype=torch.bfloat16, requires_grad=mode == "gradient"
    )

    def run() -> None:
        for _ in range(CALLS):
            with torch.set_grad_enabled(mode == "gradient"):
                output = module(x, None)
            if mode == "gradient":
                torch.autograd.grad(output, [x, *module.parameters()], x, allow_unused=True)
        torch.cuda.synchronize()

    return run


def step(name: str, repeats: int) -> dict[str, Any]:
    """Times a config's training step, and that of Hugging Face's modules if PyTorch has the device."""
    from benchmarks import tasks, training_step
    from benchmarks.timing import interleaved
    from lra import train

    config = importlib.import_module(f"configs.{name}").get_config().to_dict()
    config["train"]["accumulation"] = 1
    run = train.prepare(config)
    batch = tasks.made_up_batch(run)
    cases: dict[str, Callable[[], Any]] = {"ours": training_step.our_step(run, batch)}
    if "inputs" in batch and _torch_has_the_device():  # Hugging Face has no classifier of pairs
        from benchmarks import peers

        sizes = config["attention"]["num_landmarks"], config["attention"]["conv_kernel_size"]
        model = peers.Classifier(run.model.config, run.model.num_classes, *sizes)
        cases["Hugging Face"] = peers.training_step(model, batch, "cuda")
    times = interleaved(cases, repeats=repeats)
    return {"config": name, **{case: found["median"] for case, found in times.items()}}


def _torch_has_the_device() -> bool:
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
