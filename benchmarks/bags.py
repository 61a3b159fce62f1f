"""Time and memory of one attention module on bags of patches: ours and lucidrains', on a CPU.

    python -m benchmarks.bags --out results/benchmarks/bags

The modules have TransMIL's sizes: 8 heads of 64, 256 landmarks, a convolution of 33. A bag has 1,000,
10,000 or 100,000 instances. In ours, the class token is its own landmark. Memory is the growth of a new
process during a call, after a call that compiles. Times are medians of blocks of calls, in turn. The same
command resumes.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax

from benchmarks.attention import DIM, HEADS, MODES, with_gradient
from benchmarks.table import Row, Table, in_own_process, parser_for, this_machine, use_cpu
from benchmarks.timing import added_bytes, in_blocks
from cli.commands import number, run_to_end
from nystromformer_jax import SelfAttention, make_core

LANDMARKS, WIDTH = 256, 33
MODULES = ("ours", "lucidrains")
AXES = ("instances", "mode", "module")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes `<out>.json`; returns the exit code."""
    parser = parser_for("benchmarks.bags", __doc__)
    positive = number(int, 1)
    parser.add_argument("--instances", type=positive, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds of blocks")
    given = parser.parse_args(arguments)

    def make_table() -> None:
        use_cpu()
        settings = {**this_machine("torch", "nystrom-attention"), "rounds": given.rounds}
        table = Table("benchmarks.bags", given.out, settings, arguments=arguments)
        cells = [(n, mode, module) for n in given.instances for mode in MODES for module in MODULES]
        table.fill(AXES, cells, functools.partial(_measure, given.rounds), peers=True)
        table.finish()

    return run_to_end("benchmarks.bags", make_table)


def _measure(rounds: int, instances: int, mode: str, modules: Sequence[str]) -> list[Row]:
    """Returns a row for each module: memory in processes of their own, then times in turn."""
    rows: dict[str, Row] = {}
    for module in modules:
        row: Row = {"instances": instances, "mode": mode, "module": module}
        rows[module] = row | in_own_process(_memory, instances, mode, module)
    calls = {module: _call_of(instances, mode, module) for module in modules}
    for module, times in in_blocks(calls, rounds=rounds).items():
        rows[module]["seconds"] = times
    return list(rows.values())


def _memory(instances: int, mode: str, module: str) -> Row:
    """Returns the memory that a call adds to this process."""
    use_cpu()
    call = _call_of(instances, mode, module)
    jax.block_until_ready(call())
    return {"added_bytes": added_bytes(call)}


def _call_of(instances: int, mode: str, module: str) -> Callable[[], Any]:
    """Returns a call of a module on one random bag, forward or with gradients of input and weights."""
    shape = (1, instances, HEADS * DIM)
    if module == "ours":
        core = make_core(
            "nystrom", num_landmarks=LANDMARKS, conv_kernel_size=WIDTH, num_own_landmarks=1
        )
        ours = SelfAttention(HEADS, core, deterministic=True)
        x, cotangent = jax.random.normal(jax.random.key(0), (2, *shape))
        params = jax.jit(ours.init)(jax.random.key(1), x[:, : LANDMARKS + 1])

        def apply(mask: None, params: Any, x: Any) -> Any:
            return ours.apply(params, x, mask)

        if mode == "forward":
            return functools.partial(jax.jit(apply), None, params, x)
        return functools.partial(jax.jit(with_gradient(apply)), None, params, x, cotangent)

    import torch
    from nystrom_attention import NystromAttention

    torch.set_num_threads(this_machine()["cpu_threads"])
    theirs = NystromAttention(HEADS * DIM, DIM, HEADS, LANDMARKS, residual_conv_kernel=WIDTH).eval()
    inputs, weights = torch.randn(2, *shape)

    def run() -> None:
        with torch.set_grad_enabled(mode != "forward"):
            output = theirs(inputs.requires_grad_(mode != "forward"))
        if mode != "forward":
            torch.autograd.grad(output, [inputs, *theirs.parameters()], weights)

    return run


if __name__ == "__main__":
    sys.exit(main())
