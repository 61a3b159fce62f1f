"""Memory, FLOPs and bytes of a program, reported by its compiler. Compiling for a TPU needs no TPU."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.sharding import Mesh, SingleDeviceSharding

from nystromformer_jax.training.errors import is_out_of_memory, needed_temporaries
from nystromformer_jax.training.plan import program_cost
from nystromformer_jax.training.topology import compiler_options


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program for one device.

    Attributes:
      figures: `argument_bytes`, `output_bytes`, `temp_bytes`, and their sum `peak_bytes`;
        `flops` and `bytes_accessed`, in which a loop's body counts once; `optimal_seconds`, for TPUs
        only; `compile_seconds`; `fits`, and the `reason` if it does not. Unknown figures are None.
      run: The program; None if it does not fit into the device's memory.
    """

    figures: dict[str, Any]
    run: jax.stages.Compiled | None


def compile_ahead(
    function: Callable[..., Any], arguments: tuple[Any, ...], device: jax.Device
) -> Compiled:
    """Compiles `function` for one device, for arguments with the shapes and dtypes of `arguments`."""
    sharding = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    lowered = jax.jit(for_device(function, device)).lower(*shapes)
    run: jax.stages.Compiled | None = None
    reason = None
    cost: Mapping[str, float] = {}
    began = time.perf_counter()
    try:
        run = lowered.compile(compiler_options=compiler_options(device))
        compile_seconds = time.perf_counter() - began
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        compile_seconds = time.perf_counter() - began
        memory = needed_memory(str(error), _nbytes(shapes), _nbytes(lowered.out_info))
        reason = str(error).splitlines()[0]
    else:
        statistics: Any = run.memory_analysis()
        sizes = {
            f"{kind}_bytes": getattr(statistics, f"{kind}_size_in_bytes")
            for kind in ("argument", "output", "temp")
        }
        memory = {**sizes, "peak_bytes": sum(sizes.values())}
        cost = program_cost(run)
    seconds = cost.get("optimal_seconds")
    return Compiled(
        {
            **memory,
            "flops": cost.get("flops"),
            "bytes_accessed": cost.get("bytes accessed"),
            "optimal_seconds": None if seconds is None else decoded_seconds(seconds),
            "compile_seconds": round(compile_seconds, 3),
            "fits": run is not None,
            "reason": reason,
        },
        run,
    )


def for_device(function: Callable[..., Any], device: jax.Device) -> Callable[..., Any]:
    """Wraps `function` so that it is traced for `device` and uses the implementations for it."""
    mesh = Mesh(np.array([device]), ("data",)).abstract_mesh

    @functools.wraps(function)
    def traced(*arguments: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return function(*arguments)

    return traced


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def needed_memory(message: str, argument_bytes: int, output_bytes: int) -> dict[str, int | None]:
    """Returns the memory of a program that did not fit; None for what the message does not report."""
    temp = needed_temporaries(message)
    return {
        "argument_bytes": argument_bytes,
        "output_bytes": output_bytes,
        "temp_bytes": temp,
        "peak_bytes": None if temp is None else argument_bytes + output_bytes + temp,
    }


def decoded_seconds(seconds: float) -> float | None:
    """Corrects the compiler's estimate, which counts −1 s for each operation that it cannot estimate.

    Valid for programs of less than a second. Returns None if nothing was estimated.
    """
    return (seconds + math.ceil(-seconds) if seconds < 0 else seconds) or None
