"""TPUs that need not be there: their devices for the compiler, their published sizes, and its refusals."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping

import jax
from jax.errors import JaxRuntimeError

from nystromformer_jax.spelling import nearest

__all__ = [
    "CHIPS",
    "Chip",
    "chip_of",
    "decoded_seconds",
    "is_out_of_memory",
    "needed_memory",
    "needed_temporaries",
    "topology_devices",
]

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
class Chip:
    """One TPU chip as it is published.

    Attributes:
        memory_bytes: Its HBM.
        flops: Of bfloat16 matmuls a second, at most.
        memory_rate: Bytes a second between HBM and the chip.
        link_rate: Bytes a second that one link to a neighbour carries one way.
        hertz: Cycles a second.
    """

    memory_bytes: int
    flops: float
    memory_rate: float
    link_rate: float
    hertz: float


# Source: Austin et al. 2025, "How to Scale Your Model", table of TPUs (chapter 2). The clock is the one at
# which the matrix units reach `flops`: v4 and v5p have 8 of 128 x 128 a chip, v5e 4, v6e 4 of 256 x 256.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(32 * 2**30, 2.75e14, 1.2e12, 4.5e10, 1.05e9),
    "v5e": Chip(16 * 2**30, 1.97e14, 8.1e11, 4.5e10, 1.5e9),
    "v5p": Chip(96 * 2**30, 4.59e14, 2.8e12, 9e10, 1.75e9),
    "v6e": Chip(32 * 2**30, 9.2e14, 1.6e12, 9e10, 1.75e9),
}


def chip_of(topology: str) -> Chip:
    """The chip that a topology such as `v5e:4x4` is made of.

    Raises:
      ValueError: none that is known here.
    """
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        raise ValueError(f"No sizes are known of TPU {kind!r}{nearest(kind, CHIPS)}")
    return CHIPS[kind]


def topology_devices(name: str) -> list[jax.Device]:
    """The devices of a TPU topology such as `v5e:4x4`; they can be compiled for, and nothing more.

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
            " pip install -e '.[plan]' in the clone brings it."
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
    return list(description.devices)


def is_out_of_memory(error: JaxRuntimeError) -> bool:
    """Whether a compiler or a device ran out of memory, or the CPU's library of fused operations did."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "YNNPACK operation failed"))


def needed_memory(message: str, argument_bytes: int, output_bytes: int) -> dict[str, int | None]:
    """The memory of a program that its compiler refused; None for what the message does not tell."""
    temp = needed_temporaries(message)
    return {
        "argument_bytes": argument_bytes,
        "output_bytes": output_bytes,
        "temp_bytes": temp,
        "peak_bytes": None if temp is None else argument_bytes + output_bytes + temp,
    }


def needed_temporaries(message: str) -> int | None:
    """The bytes of temporaries in a compiler's refusal; None where it does not tell."""
    found = re.search(r"HLO temporaries \(([\d.]+)([KMGT]?)\)", message)
    return round(float(found[1]) * UNITS[found[2]]) if found else None


def decoded_seconds(seconds: float) -> float | None:
    """The estimate without the second that each operation takes off for which there is none.

    Holds for programs below a second. None where nothing was estimated.
    """
    return (seconds + math.ceil(-seconds) if seconds < 0 else seconds) or None
