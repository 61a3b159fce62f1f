"""A training step that is compiled: the bytes that it needs, and the seconds that it takes."""

import contextlib
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from nystromformer_jax.training.topology import is_out_of_memory


def volunteer() -> None:
    """Makes this process the one that the system kills should memory run out (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


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


def timed(
    step: Any, make: Callable[[], Any], steps: int, limit_bytes: float
) -> dict[str, float] | None:
    """Median seconds of `steps` steps after one more, the last loss, and the process's peak.

    None where memory runs out, or the peak is above the limit: on a CPU the compiler does not see what its
    fused operations take for themselves.
    """
    seconds = []
    try:
        state, totals, batch = make()
        for _ in range(1 + steps):
            began = time.perf_counter()
            state, totals, loss = step(state, totals, batch)
            loss.block_until_ready()
            seconds.append(time.perf_counter() - began)
            peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if peak_bytes > limit_bytes:
                return None
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {
        "step_seconds": statistics.median(seconds[1:]),
        "loss": float(loss),
        "peak_bytes": peak_bytes,
    }
