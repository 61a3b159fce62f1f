"""Timing of several functions in turn, so that other load on the machine affects all of them."""

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from nystromformer_jax.training import describe_environment


def interleaved(
    cases: Mapping[str, Callable[[], Any]], *, repeats: int, budget_seconds: float = 60.0
) -> dict[str, dict[str, float]]:
    """Returns the median, minimum and maximum seconds of each case, and its number of runs.

    Every case runs once to warm up, then `repeats` times in turn with the others. A case that has used its
    share of `budget_seconds` is stopped after at least three runs. On a CPU with one thread, the seconds are
    processor time, which other load on the core hardly changes.
    """
    is_single = jax.default_backend() == "cpu" and describe_environment()["cpu_threads"] == 1
    clock = time.process_time if is_single else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        jax.block_until_ready(case())
    for _ in range(repeats):
        for name, case in cases.items():
            if len(seconds[name]) >= 3 and sum(seconds[name]) > budget_seconds / len(cases):
                continue
            began = clock()
            jax.block_until_ready(case())
            seconds[name].append(clock() - began)
    return {
        name: {
            "median": statistics.median(runs),
            "min": min(runs),
            "max": max(runs),
            "runs": len(runs),
        }
        for name, runs in seconds.items()
    }


def available_bytes() -> int:
    """Returns the memory available without swapping on Linux, and this machine's total memory elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    kibibytes = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return 1024 * int(kibibytes)


def added_bytes(run: Callable[[], Any]) -> int | None:
    """Returns the peak growth of this process's memory during `run`, on Linux.

    Returns None on other systems, and if the kernel does not let a process reset its own peak.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or `run` could reuse freed memory without being counted
        Path("/proc/self/clear_refs").write_text("5")
        before = _kibibytes("VmRSS")
        jax.block_until_ready(run())
        return max(0, 1024 * (_kibibytes("VmHWM") - before))
    except (OSError, AttributeError):
        return None


def _kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
