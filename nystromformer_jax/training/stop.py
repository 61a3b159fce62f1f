"""SIGTERM and Ctrl-C as a wish: the loop finishes its step, saves, and ends.

In a run of several processes a signal to any of them stops all at the same step, see `agree`.
"""

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import jax
from jax.experimental import multihost_utils

__all__ = ["Interrupted", "StopSignals"]

Item = TypeVar("Item")


class Interrupted(Exception):
    """A run that a signal ended, with everything saved. `exit_code` is the shell's: 130 or 143."""

    def __init__(self, signal_number: int, step: int, total_steps: int) -> None:
        self.step = step
        self.exit_code = 128 + signal_number
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(
            f"Stopped by {name} after step {step} of {total_steps}, everything saved;"
            " the same command goes on from there."
        )


class Stopping(Exception):
    """Leaves an evaluation in the middle. Not an error: it is done again after the resume."""


class StopSignals:
    """While entered, SIGTERM and SIGINT only set `received`; afterwards the old handlers are back.

    Outside the main thread, where Python allows no handlers, it never receives anything. With several
    processes SIGTERM is jax's, which tells the others, and `received` is set by `agree` alone.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            alone = jax.process_count() == 1
            handlers = {signal.SIGTERM: self._receive, signal.SIGINT: self._receive}
            for number, handler in handlers.items() if alone else [(signal.SIGINT, _pass_on)]:
                self._previous[number] = signal.signal(number, handler)
        return self

    def agree(self, step: int) -> None:
        """With several processes: sets `received` in all at the same step after one got a signal.

        Every process calls it before every step.
        """
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.received = signal.SIGTERM

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """Passes `items` on until a signal comes, then raises Stopping."""
        for item in items:
            if self.received is not None:
                raise Stopping
            yield item

    def _receive(self, number: int, frame: FrameType | None) -> None:
        # os.write: print may be what the signal interrupted, and is not re-entrant.
        if self.received is None:
            self.received = number
            os.write(2, b"\nStopping: finishing this step, then saving.\n")
        else:
            os.write(2, b"\nStill saving; kill -9 would lose the steps since the last save.\n")


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Makes Ctrl-C the signal that jax tells the other processes of."""
    os.kill(os.getpid(), signal.SIGTERM)
