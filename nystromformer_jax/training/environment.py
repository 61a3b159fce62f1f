"""What else a run's last bits depend on: versions, device, threads."""

import importlib.metadata
import os
import platform
from typing import Any

import jax

__all__ = ["describe_environment"]


def describe_environment() -> dict[str, Any]:
    """Versions, device and CPU threads: on the same of all these a run repeats its bits."""
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    devices = jax.devices()
    return {
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in packages},
        },
        "device": {"kind": devices[0].device_kind, "count": len(devices)},
        "cpu_threads": _cpu_threads(),
    }


def _cpu_threads() -> int:
    """The size of XLA's CPU pool: sums are split by it, so bits depend on it."""
    if os.environ.get("NPROC", "").isdigit():
        return int(os.environ["NPROC"])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
