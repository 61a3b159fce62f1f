"""What the compiler says of a program before it runs: memory, FLOPs, bytes. Needs no TPU to ask a TPU's."""

import dataclasses
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.errors import JaxRuntimeError
from jax.sharding import SingleDeviceSharding

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# What libtpu would ask of a TPU machine's metadata; no TPU is used, so the answers do not matter.
NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


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
    run: Callable[..., Any] | None


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
    run, reason = None, None
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


def is_out_of_memory(error: JaxRuntimeError) -> bool:
    """Whether a compiler or a device ran out of memory, or the CPU's library of fused operations did."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "YNNPACK operation failed"))


def needed_memory(message: str, argument_bytes: int, output_bytes: int) -> dict[str, int | None]:
    """The memory of a program that its compiler refused; None for what the message does not tell."""
    found = re.search(r"HLO temporaries \(([\d.]+)([KMGT]?)\)", message)
    temp = round(float(found[1]) * UNITS[found[2]]) if found else None
    return {
        "argument_bytes": argument_bytes,
        "output_bytes": output_bytes,
        "temp_bytes": temp,
        "peak_bytes": None if temp is None else argument_bytes + output_bytes + temp,
    }


def decoded_seconds(seconds: float) -> float | None:
    """The estimate without the second that each operation takes off for which there is none.

    Holds for programs below a second. None where nothing was estimated.
    """
    return (seconds + math.ceil(-seconds) if seconds < 0 else seconds) or None


def topology_device(name: str) -> jax.Device:
    """The first device of a TPU topology such as `v5e:1x1`; it can be compiled for, and nothing more.

    Raises:
      ValueError: libtpu is missing, or knows no such topology.
    """
    if not re.fullmatch(r"\w+:[1-9]\d*(x[1-9]\d*)*", name):  # libtpu crashes on a size of 0
        raise ValueError(
            f"--topology is a TPU's kind and its shape, such as v5e:1x1; got {name!r}."
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            "--topology needs libtpu, which compiles for TPUs without one:"
            " pip install 'jax[tpu]' brings it."
        )
    for variable, value in NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(topology_name=name, platform="tpu")
    except JaxRuntimeError as error:
        raise ValueError(
            f"libtpu knows no TPU topology {name!r} ({str(error).splitlines()[0].rstrip('.')});"
            " it knows for example v4:1x1x1, v5e:1x1, v5p:1x1x1 and v6e:1x1."
        ) from None
    device: jax.Device = description.devices[0]
    return device


def _nbytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
