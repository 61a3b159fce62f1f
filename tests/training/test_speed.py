"""Which times count as a step's time, and how they are shown."""

import io
import sys
import time

import pytest

from nystromformer_jax.training.checkpoint import Record
from nystromformer_jax.training.speed import Progress, Stopwatch, speed_of


def test_pauses_are_excluded_and_input_is_a_fraction(monkeypatch):
    now, record = [1000.0], Record()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    stopwatch = Stopwatch(record, batch_size=32)
    wait(100)
    stopwatch.restart()  # compilation
    for _ in range(4):
        with stopwatch.input():
            wait(0.5)
        wait(1.5)
        stopwatch.step()
    with stopwatch.pause():
        wait(50)
    assert stopwatch.lap() == {"step_seconds": 2, "examples_per_second": 16, "input_share": 0.25}
    assert stopwatch.lap() == {}
    stopwatch.add_elapsed()
    assert (record.timed_steps, record.timed_seconds, record.input_seconds) == (4, 8, 2)
    assert record.train_seconds == 158


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_is_lines_in_a_pipe_and_a_bar_on_a_terminal(monkeypatch, is_terminal):
    stream = io.StringIO()
    stream.isatty = lambda: is_terminal
    monkeypatch.setattr(sys, "stderr", stream)
    progress = Progress(8, 10)
    progress.step()
    progress.show({"loss": 0.5}, speed_of(steps=1, seconds=2.0, input_seconds=0.0, batch_size=32))
    progress.say("saved")
    progress.close()
    shown = stream.getvalue()
    assert ("\r" in shown) == is_terminal
    assert all(text in shown for text in ("9/10", "loss 0.5", "16 examples/s", "saved"))
    assert ("00:02 left" in shown) != is_terminal  # a bar has its own remaining time
