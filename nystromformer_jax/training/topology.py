"""TPU topologies for compilation without a TPU, specifications of chips, and out-of-memory errors."""

import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Mapping

import jax
from jax.errors import JaxRuntimeError

from nystromformer_jax.spelling import nearest

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# libtpu requires the metadata of a TPU machine. No TPU is used, so the values have no effect.
NO_TPU_HERE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # By default libtpu locks the TPU, so only one process could compile at a time.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published specifications of one TPU chip."""

    memory_bytes: int  # HBM
    flops: float  # peak bfloat16 FLOPs per second
    memory_rate: float  # bytes per second between HBM and the chip
    link_rate: float  # bytes per second of one link to a neighbor, in one direction
    hertz: float  # cycles per second


# Source: Austin et al. 2025, "How to Scale Your Model", table of TPUs (chapter 2). `hertz` is the clock rate
# at which the matrix units reach `flops`. Units per chip: v4 and v5p 8 (128 x 128), v5e 4 (128 x 128),
# v6e 4 (256 x 256).
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(32 * 2**30, 2.75e14, 1.2e12, 4.5e10, 1.05e9),
    "v5e": Chip(16 * 2**30, 1.97e14, 8.1e11, 4.5e10, 1.5e9),
    "v5p": Chip(96 * 2**30, 4.59e14, 2.8e12, 9e10, 1.75e9),
    "v6e": Chip(32 * 2**30, 9.2e14, 1.6e12, 9e10, 1.75e9),
}


def chip_of(topology: str) -> Chip:
    """Returns the chip of a topology such as `v5e:4x4`; raises ValueError if it is unknown."""
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        raise ValueError(f"Unknown TPU {kind!r}{nearest(kind, CHIPS)}")
    return CHIPS[kind]


def topology_devices(name: str) -> list[jax.Device]:
    """Returns compile-only devices of a TPU topology such as `v5e:4x4`.

    Raises:
        ValueError: libtpu is not installed or does not support the topology.
    """
    if not re.fullmatch(r"\w+:[1-9]\d*(x[1-9]\d*)*", name):  # libtpu crashes on a size of 0
        raise ValueError(f"--topology needs a TPU's kind and shape, such as v5e:1x1; got {name!r}.")
    if importlib.util.find_spec("libtpu") is None:
        raise ValueError(
            "--topology needs libtpu, which compiles for TPUs without one:"
            " pip install -e '.[plan]' in the clone."
        )
    for variable, value in NO_TPU_HERE.items():
        os.environ.setdefault(variable, value)
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            topology_name=name, platform="tpu", chips_per_host_bounds=_host_bounds(name)
        )
    except JaxRuntimeError as error:
        raise ValueError(
            f"libtpu does not know the TPU topology {name!r} ({str(error).splitlines()[0].rstrip('.')});"
            " it knows for example v4:1x1x1, v5e:1x1, v5p:1x1x1 and v6e:1x1."
        ) from None
    return list(description.devices)


def _host_bounds(name: str) -> tuple[int, int, int]:
    """Returns the chips per host along each axis: 2 × 2 × 1, or 1 along an odd axis.

    The default of libtpu is always 2 × 2 × 1, with which some versions (0.0.42) reject odd axes.
    """
    x, y, *_ = [*map(int, name.partition(":")[2].split("x")), 1]
    return math.gcd(x, 2), math.gcd(y, 2), 1


def is_out_of_memory(error: JaxRuntimeError) -> bool:
    """Returns True if the compiler, a device or the CPU's YNNPACK library ran out of memory."""
    return any(words in str(error) for words in ("RESOURCE_EXHAUSTED", "YNNPACK operation failed"))


def needed_temporaries(message: str) -> int | None:
    """Returns the bytes of temporaries stated in an out-of-memory message, or None."""
    found = re.search(r"HLO temporaries \(([\d.]+)([KMGT]?)\)", message)
    return round(float(found[1]) * UNITS[found[2]]) if found else None
