"""A training step that is compiled: the bytes that it needs, and the seconds that it takes.

On a CPU the compiler does not see what its fused operations take for themselves, so a process that measures
limits itself: what needs more then fails with an error, and is not killed by the system.
"""

import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from lra.efficiency.compiled import is_out_of_memory

STATUS = Path("/proc/self/status")


def limit_memory(limit_bytes: float) -> None:
    """From now on this process holds no more than that, where the system can see to it (Linux)."""
    if STATUS.is_file():
        reserved = 1024 * (_kibibytes("VmData") - _kibibytes("RssAnon"))  # stacks never touched
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (int(limit_bytes) + reserved, hard))


def needed_bytes(compiled: Any) -> int:
    """What the compiler gives it: arguments, results and temporaries, what is donated counted once."""
    memory = compiled.memory_analysis()
    taken: int = (
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
    return taken


def timed(step: Any, make: Callable[[], Any], steps: int) -> dict[str, float] | None:
    """Median seconds of `steps` steps after one more, the last loss, and the process's peak.

    None where the memory does not suffice.
    """
    seconds = []
    try:
        state, totals, batch = make()
        for _ in range(1 + steps):
            began = time.perf_counter()
            state, totals, loss = step(state, totals, batch)
            loss.block_until_ready()
            seconds.append(time.perf_counter() - began)
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {
        "step_seconds": statistics.median(seconds[1:]),
        "loss": float(loss),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def _kibibytes(name: str) -> int:
    lines = STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
