"""Software versions, hardware and peak memory of a run, and the compilation cache."""

import contextlib
import functools
import importlib.metadata
import logging
import math
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

import nystromformer_jax
from nystromformer_jax.support.plugins import is_plugin, source_sha256

# Settings of JAX that change random numbers or rounding.
NUMERICS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_default_matmul_precision",
    "jax_enable_x64",
)


def describe_environment(config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns what the numbers of a run depend on besides its config and its data.

    These are versions, device, processor, CPU threads, JAX's settings for random numbers and precision, the
    commit of this package, and hashes of the plug-ins in `config`.
    """
    packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    devices = jax.devices()
    return {
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in packages},
        },
        "device": {"kind": devices[0].device_kind, "count": len(devices)},
        "processor": processor(),
        "cpu_threads": cpu_threads(),
        "numerics": {
            **{name: getattr(jax.config, name) for name in NUMERICS},
            "XLA_FLAGS": " ".join(sorted(os.environ.get("XLA_FLAGS", "").split())),
        },
        "code": {
            "nystromformer-jax": package_version(),
            **{name: source_sha256(name)[:12] for name in _plugins(config or {})},
        },
    }


@functools.cache
def package_version() -> str:
    """Returns the version of this package and, in a clone, its commit: `0.2.0 (1a2b3c4, modified)`."""
    folder = Path(nystromformer_jax.__file__).parents[1]
    if not (folder / ".git").exists():
        return nystromformer_jax.__version__

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "--short=9", "HEAD")
        modified = ", modified" if git("status", "--porcelain", "--", "*.py") else ""
    except (OSError, subprocess.SubprocessError):  # git is missing, or does not trust the folder
        return nystromformer_jax.__version__
    return f"{nystromformer_jax.__version__} ({commit}{modified})"


def _plugins(config: Mapping[str, Any]) -> list[str]:
    """Returns the plug-ins of a config: its attention and its task."""
    places = (("attention", "name"), ("data", "task"))
    sections = [(config.get(section), key) for section, key in places]
    names = [section.get(key) for section, key in sections if isinstance(section, Mapping)]
    return [name for name in names if isinstance(name, str) and is_plugin(name)]


def processor() -> str:
    """Returns the name of the processor, if the system provides it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def enable_compilation_cache(folder: Path) -> None:
    """Caches compiled programs in `folder`, unless JAX_COMPILATION_CACHE_DIR is set."""
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logging.getLogger(__name__).warning(
            "Compiled programs are not cached: %s cannot be created (%s).", folder, error.strerror
        )
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))


def peak_bytes() -> int:
    """Returns the peak memory of the first device if it reports one, else of this process."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        return int(statistics["peak_bytes_in_use"])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def machine_bytes() -> int | float:
    """Returns the memory that the processes of this machine or container may use; infinity if unknown."""
    limits = [math.inf]
    with contextlib.suppress(OSError, ValueError):  # unknown to the system
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups, versions 2 and 1
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            limits.append(int(Path("/sys/fs/cgroup", file).read_text()))
    return min(limits)


def cpu_threads() -> int:
    """Returns the size of XLA's CPU thread pool, which affects the rounding of sums."""
    if os.environ.get("NPROC", "").isdecimal():
        return int(os.environ["NPROC"])
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
