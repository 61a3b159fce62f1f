"""What the compiler says of a program before it runs: memory, FLOPs, bytes. Needs no TPU to ask a TPU's."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.errors import JaxRuntimeError
from jax.sharding import SingleDeviceSharding

from nystromformer_jax.training.topology import decoded_seconds, is_out_of_memory, needed_memory


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program for one device.

    Attributes:
      figures: `argument_bytes`, `output_bytes`, `temp_bytes`, and all three together, `peak_bytes`;
        `flops` and `bytes_accessed`, in which a loop's body counts once; `optimal_seconds`, of TPUs
        only; `compile_seconds`; `fits`, and the `reason` why not. What is not known is None.
      run: The program; None where the compiler found that the device has too little memory.
    """

    figures: dict[str, Any]
    run: jax.stages.Compiled | None


def compile_ahead(
    function: Callable[..., Any], arguments: tuple[Any, ...], device: jax.Device
) -> Compiled:
    """Compiles `function` for arguments of the shapes of `arguments`, on one device."""
    sharding = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(function).lower(*shapes)
    began = time.perf_counter()
    run: jax.stages.Compiled | None = None
    reason = None
    cost: Mapping[str, float] = {}
    try:
        run = lowered.compile()
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        memory = needed_memory(str(error), _nbytes(shapes), _nbytes(lowered.out_info))
        reason = str(error).splitlines()[0]
    else:
        statistics: Any = run.memory_analysis()
        sizes = {
            f"{kind}_bytes": getattr(statistics, f"{kind}_size_in_bytes")
            for kind in ("argument", "output", "temp")
        }
        memory = {**sizes, "peak_bytes": sum(sizes.values())}
        cost = run.cost_analysis() or {}
    seconds = cost.get("optimal_seconds")
    return Compiled(
        {
            **memory,
            "flops": cost.get("flops"),
            "bytes_accessed": cost.get("bytes accessed"),
            "optimal_seconds": None if seconds is None else decoded_seconds(seconds),
            "compile_seconds": round(time.perf_counter() - began, 3),
            "fits": run is not None,
            "reason": reason,
        },
        run,
    )


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
