"""A training step that is compiled: the bytes that it needs, and the seconds that it takes."""

import resource
import statistics
import time
from typing import Any


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


def timed(step: Any, state: Any, totals: Any, batch: Any, steps: int) -> dict[str, float]:
    """Median seconds of `steps` steps after one more, the last loss, and the process's peak."""
    seconds = []
    for _ in range(1 + steps):
        began = time.perf_counter()
        state, totals, loss = step(state, totals, batch)
        loss.block_until_ready()
        seconds.append(time.perf_counter() - began)
    return {
        "step_seconds": statistics.median(seconds[1:]),
        "loss": float(loss),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
