"""Timing of several functions in blocks of calls, in turn, so that other load affects all of them."""

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from nystromformer_jax.training import describe_environment


def in_blocks(
    cases: Mapping[str, Callable[[], Any]], *, rounds: int, budget_seconds: float = 60.0
) -> dict[str, dict[str, float]]:
    """Returns the median, minimum and maximum seconds of each case, and its number of timed runs.

    In each round, every case runs in a block of six calls, of which the first two are not timed: threads of
    another runtime keep spinning after its last call and would slow down the calls that follow. A call that
    takes a fifth of a second or more is timed once per block, after an untimed one. A case that has used
    its share of `budget_seconds` is stopped after at least three rounds. On a CPU with one thread, the
    seconds are processor time, which other load on the core hardly changes.
    """
    is_single = jax.default_backend() == "cpu" and describe_environment()["cpu_threads"] == 1
    clock = time.process_time if is_single else time.perf_counter

    def call(case: Callable[[], Any]) -> float:
        began = clock()
        jax.block_until_ready(case())
        return clock() - began

    seconds: dict[str, list[float]] = {name: [] for name in cases}
    used = dict.fromkeys(cases, 0.0)
    for case in cases.values():
        call(case)  # compiles
    for number in range(rounds):
        for name, case in cases.items():
            if number >= 3 and used[name] > budget_seconds / len(cases):
                continue
            first = call(case)
            block = [call(case)] if first >= 0.2 else [call(case) for _ in range(5)][1:]
            used[name] += first + sum(block)
            seconds[name] += block
    return {
        name: {
            "median": statistics.median(timed),
            "min": min(timed),
            "max": max(timed),
            "runs": len(timed),
        }
        for name, timed in seconds.items()
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
