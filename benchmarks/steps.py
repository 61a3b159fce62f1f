"""Memory and time of a compiled training step."""

import contextlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jax.errors import JaxRuntimeError

from nystromformer_jax.training import peak_bytes
from nystromformer_jax.training.errors import is_out_of_memory


def prefer_oom_kill() -> None:
    """Makes this process the first one that Linux kills if memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def needed_bytes(compiled: Any) -> int:
    """Returns the bytes of arguments, results and temporaries; donated ones count once."""
    memory = compiled.memory_analysis()
    num_bytes: int = (
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
    return num_bytes


def timed(
    step: Any, make: Callable[[], Any], steps: int, limit_bytes: float
) -> dict[str, float] | None:
    """Returns the median seconds of `steps` steps after a warm-up step, the last loss, and the peak memory.

    Returns None if memory runs out or the peak is above the limit: a CPU's compiler does not count the
    temporaries of its fused operations.
    """
    seconds = []
    try:
        state, totals, batch = make()
        for _ in range(1 + steps):
            began = time.perf_counter()
            state, totals, loss = step(state, totals, batch)
            loss.block_until_ready()
            seconds.append(time.perf_counter() - began)
            peak = peak_bytes()
            if peak > limit_bytes:
                return None
    except JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    return {
        "step_seconds": statistics.median(seconds[1:]),
        "loss": float(loss),
        "peak_bytes": peak,
    }
