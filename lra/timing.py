"""Times rivals in turn, so that a machine that slows down slows all of them down."""

import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax


def interleaved(
    cases: Mapping[str, Callable[[], Any]], *, repeats: int, budget_seconds: float = 60.0
) -> dict[str, dict[str, float]]:
    """Runs every case once to warm up, then `repeats` rounds of all of them, one after the other.

    A case whose share of `budget_seconds` is used up runs no more, but three times at least.

    Returns:
      For each case the median, least and largest seconds, and how many runs they are of.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        jax.block_until_ready(case())
    for _ in range(repeats):
        for name, case in cases.items():
            if len(seconds[name]) >= 3 and sum(seconds[name]) > budget_seconds / len(cases):
                continue
            began = time.perf_counter()
            jax.block_until_ready(case())
            seconds[name].append(time.perf_counter() - began)
    return {
        name: {
            "median": statistics.median(runs),
            "min": min(runs),
            "max": max(runs),
            "runs": len(runs),
        }
        for name, runs in seconds.items()
    }


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def available_bytes() -> int:
    """Memory that this machine could still give, without swapping where the system tells it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return 1024 * int(kibibytes)


def added_bytes(run: Callable[[], Any]) -> int | None:
    """The most memory that this process held during `run` above what it held before, on Linux.

    None elsewhere, and where the kernel does not let a process set its own mark back.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what is free but kept would be taken again unseen
        Path("/proc/self/clear_refs").write_text("5")
        before = _kibibytes("VmRSS")
        jax.block_until_ready(run())
        return max(0, 1024 * (_kibibytes("VmHWM") - before))
    except (OSError, AttributeError):
        return None


def _kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
