"""Step timing and progress display."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tqdm import tqdm

from nystromformer_jax.training.checkpoint import Record


class Stopwatch:
    """Measures step time and input wait, and adds both to `record`."""

    def __init__(self, record: Record, batch_size: int) -> None:
        self._record = record
        self._batch_size = batch_size
        self._counted = time.perf_counter()
        self.restart()

    def restart(self) -> None:
        """Discards the time since the last `lap`, to exclude compilation."""
        self._began = time.perf_counter()
        self._steps = 0
        self._input_seconds = 0.0

    @contextmanager
    def input(self) -> Iterator[None]:
        """Measures the time to wait for the next batch and shard it."""
        began = time.perf_counter()
        yield
        self._input_seconds += time.perf_counter() - began

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Excludes the time in the `with` block (evaluation, saving) from the step time."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def step(self) -> None:
        """Counts a step."""
        self._steps += 1

    def lap(self) -> dict[str, float]:
        """Returns the speed since the last lap or restart. Call it when the device is idle."""
        seconds = time.perf_counter() - self._began
        steps, input_seconds = self._steps, self._input_seconds
        self.restart()
        if not steps:
            return {}
        self._record.timed_steps += steps
        self._record.timed_seconds += seconds
        self._record.input_seconds += input_seconds
        return speed_of(steps, seconds, input_seconds, self._batch_size)

    def add_elapsed(self) -> None:
        """Updates `record.train_seconds`, which includes evaluation and saving."""
        now = time.perf_counter()
        self._record.train_seconds += now - self._counted
        self._counted = now


def speed_of(steps: int, seconds: float, input_seconds: float, batch_size: int) -> dict[str, float]:
    """Returns seconds per step, examples per second and the share of time spent on input."""
    return {
        "step_seconds": seconds / steps,
        "examples_per_second": steps * batch_size / seconds,
        "input_share": input_seconds / seconds,
    }


class Progress:
    """Shows progress on stderr: a bar on a terminal, otherwise one line per log step."""

    def __init__(self, step: int, total_steps: int, *, silent: bool = False) -> None:
        self._stream = sys.stderr
        self._silent = silent
        self._step, self._total_steps = step, total_steps
        self._bar: tqdm | None = None
        if self._stream.isatty() and not silent:
            self._bar = tqdm(
                total=total_steps, initial=step, file=self._stream, unit="step", dynamic_ncols=True
            )

    def step(self) -> None:
        """Counts a step."""
        self._step += 1
        if self._bar is not None:
            self._bar.update()

    def show(
        self,
        values: Mapping[str, float],
        speed: Mapping[str, float] | None = None,
        best_step: int | None = None,
    ) -> None:
        """Shows metrics, the best step so far if given, and with `speed` throughput and remaining time."""
        parts = [f"{name} {value:.4g}" for name, value in values.items()]
        parts += [] if best_step is None else [f"best step {best_step}"]
        if speed:
            parts.append(f"{speed['examples_per_second']:.4g} examples/s")
        if speed and self._bar is not None:
            self._bar.set_postfix_str(", ".join(parts))
            return
        if speed:
            left = (self._total_steps - self._step) * speed["step_seconds"]
            parts.append(f"{tqdm.format_interval(left)} left")
        self.say(f"step {self._step}/{self._total_steps}: {', '.join(parts)}")

    def say(self, text: str) -> None:
        """Prints a line, above the progress bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif not self._silent:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Closes the bar."""
        if self._bar is not None:
            self._bar.close()
