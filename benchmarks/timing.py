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

ROUNDS = 5  # with fewer, one disturbed block would change a median
BLOCK, UNTIMED = 6, 2  # calls of one function in succession, of which the first are not timed
SLOW_SECONDS = 0.2


def in_blocks(
    cases: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = ROUNDS,
    budget_seconds: float = 60.0,
) -> dict[str, dict[str, float]]:
    """Returns the median, minimum and maximum seconds of each case, and its number of timed runs.

    In each round, every case runs in a block of six calls, of which the first two are not timed: threads of
    another runtime keep spinning after its last call and would slow down the calls that follow. A call that
    takes a fifth of a second or more is timed once per block, after an untimed one if there are other cases.
    A case that has used its share of `budget_seconds` is stopped after at least five rounds. On a CPU with
    one thread, the seconds are processor time, which other load on the core hardly changes.
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
            if number >= ROUNDS and used[name] > budget_seconds / len(cases):
                continue
            block = [call(case)]
            if block[0] < SLOW_SECONDS:
                block += [call(case) for _ in range(BLOCK - 1)]
                timed = block[UNTIMED:]
            else:
                block += [call(case)] if len(cases) > 1 else []
                timed = block[-1:]
            used[name] += sum(block)
            seconds[name] += timed
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
        return 1024 * _kibibytes("/proc/meminfo", "MemAvailable")
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def added_bytes(run: Callable[[], Any]) -> int | None:
    """Returns the peak growth of this process's memory during `run`, on Linux.

    Returns None on other systems, and if the kernel does not let a process reset its own peak.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)  # or `run` could reuse freed memory without being counted
        Path("/proc/self/clear_refs").write_text("5")
        before = _kibibytes("/proc/self/status", "VmRSS")
        jax.block_until_ready(run())
        return max(0, 1024 * (_kibibytes("/proc/self/status", "VmHWM") - before))
    except (OSError, AttributeError):
        return None


def _kibibytes(file: str, name: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
