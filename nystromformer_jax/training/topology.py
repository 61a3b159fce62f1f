"""Topologies for compilation without a device, and specifications of chips."""

import importlib.util
import math
import os
import re
from collections.abc import Mapping
from typing import NamedTuple

import jax
from jax.errors import JaxRuntimeError

from nystromformer_jax.support.spelling import nearest

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


class Gpu(NamedTuple):
    """Specifications of a GPU for XLA's compiler, in addition to those of `Chip`; sizes in bytes."""

    name: str
    capability: str
    cores: int  # streaming multiprocessors
    fpus_per_core: int
    l2_cache: int
    shared_memory: int  # per core
    block_shared_memory: int  # largest per block


class Chip(NamedTuple):
    """Published specifications of one TPU chip or GPU."""

    memory_bytes: int  # HBM
    flops: float  # peak bfloat16 FLOPs per second
    memory_rate: float  # bytes per second between HBM and the chip
    link_rate: float  # bytes per second of one link to a neighbor, in one direction
    hertz: float  # cycles per second
    gpu: Gpu | None = None  # None for TPUs


H200 = Gpu(
    "NVIDIA H200 141GB HBM3e",
    "major: 9 feature_extension: ACCELERATED_FEATURES",
    cores=132,
    fpus_per_core=128,
    l2_cache=52_428_800,
    shared_memory=233_472,
    block_shared_memory=232_448,
)
A100 = Gpu(
    "NVIDIA A100-SXM4-80GB",
    "major: 8",
    cores=108,
    fpus_per_core=64,
    l2_cache=41_943_040,
    shared_memory=167_936,
    block_shared_memory=166_912,
)

# Source: Austin et al. 2025, "How to Scale Your Model", table of TPUs (chapter 2). `hertz` is the clock rate
# at which the matrix units reach `flops`. Units per chip: v4 and v5p 8 (128 x 128), v5e 4 (128 x 128),
# v6e 4 (256 x 256). GPUs: NVIDIA's data sheets, FLOPs without sparsity.
CHIPS: Mapping[str, Chip] = {
    "v4": Chip(32 * 2**30, 2.75e14, 1.2e12, 4.5e10, 1.05e9),
    "v5e": Chip(16 * 2**30, 1.97e14, 8.1e11, 4.5e10, 1.5e9),
    "v5p": Chip(96 * 2**30, 4.59e14, 2.8e12, 9e10, 1.75e9),
    "v6e": Chip(32 * 2**30, 9.2e14, 1.6e12, 9e10, 1.75e9),
    "h200": Chip(151_397_597_184, 9.89e14, 4.8e12, 4.5e11, 1.98e9, H200),
    "a100": Chip(84_987_740_160, 3.12e14, 2.039e12, 3e11, 1.41e9, A100),
}


def chip_of(topology: str) -> Chip:
    """Returns the chip of a topology such as `v5e:4x4` or `h200:1`; raises ValueError if unknown."""
    kind = topology.partition(":")[0]
    if kind not in CHIPS:
        raise ValueError(f"Unknown chip {kind!r}{nearest(kind, CHIPS)}")
    return CHIPS[kind]


def topology_devices(name: str) -> list[jax.Device]:
    """Returns compile-only devices of a topology such as `v5e:4x4` (TPUs) or `h200:8` (GPUs).

    Raises:
      ValueError: The compiler is not installed or does not support the topology.
    """
    if not re.fullmatch(r"\w+:[1-9]\d*(x[1-9]\d*)*", name):  # libtpu crashes on a size of 0
        raise ValueError(
            f"--topology needs a chip and a shape, such as v5e:1x1 or h200:1; got {name!r}."
        )
    kind, _, size = name.partition(":")
    if kind in CHIPS and (gpu := CHIPS[kind].gpu):
        return _gpu_devices(kind, size, _target_config(CHIPS[kind], gpu))
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
            f"libtpu does not support the TPU topology {name!r} ({str(error).splitlines()[0].rstrip('.')})."
            " Pass another --topology, such as v4:1x1x1, v5e:1x1, v5p:1x1x1 or v6e:1x1."
        ) from None
    return list(description.devices)


def _target_config(chip: Chip, gpu: Gpu) -> str:
    """Returns a description for XLA's compiler; see xla/backends/gpu/target_config/specs in XLA."""
    return f"""gpu_device_info {{
  name: "{gpu.name}" device_vendor: "NVIDIA Corporation" device_address_bits: 64
  cuda_compute_capability {{ {gpu.capability} }}
  core_count: {gpu.cores} fpus_per_core: {gpu.fpus_per_core} clock_rate_ghz: {chip.hertz / 1e9}
  memory_bandwidth: {chip.memory_rate:.0f} device_memory_size: {chip.memory_bytes}
  l2_cache_size: {gpu.l2_cache}
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared_memory}
  shared_memory_per_block_optin: {gpu.block_shared_memory}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{gpu.name}"
"""


def _gpu_devices(kind: str, size: str, target_config: str) -> list[jax.Device]:
    """Returns compile-only GPUs of one host."""
    if not size.isdecimal():
        raise ValueError(f"--topology={kind}:N needs the number of GPUs; got {size!r}.")
    if importlib.util.find_spec("jax_cuda12_plugin") is None:
        raise ValueError(
            f"--topology={kind}:{size} needs XLA's compiler for GPUs:"
            " pip install -e '.[plan-gpu]' in the clone."
        )
    os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")  # no CUDA is needed to compile
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            topology_name=kind,
            platform="cuda",
            topology=f"1x1x{size}",
            target_config=target_config,
        )
    except JaxRuntimeError as error:
        raise ValueError(
            f"XLA cannot compile for --topology={kind}:{size}: {str(error).splitlines()[0]}"
        ) from None
    return list(description.devices)


def compiler_options(device: jax.Device) -> dict[str, str | bool] | None:
    """Returns the options with which to compile for `device`, which may be compile-only."""
    if device.platform != "gpu" or jax.default_backend() == "gpu":
        return None
    return {"xla_gpu_autotune_level": "0"}  # by default XLA times variants of kernels on the GPU


def _host_bounds(name: str) -> tuple[int, int, int]:
    """Returns the chips per host along each axis: 2 × 2 × 1, or 1 along an odd axis.

    The default of libtpu is always 2 × 2 × 1, with which some versions (0.0.42) reject odd axes.
    """
    x, y, *_ = [*map(int, name.partition(":")[2].split("x")), 1]
    return math.gcd(x, 2), math.gcd(y, 2), 1
