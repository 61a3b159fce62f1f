"""Which times count as a step's time, and how they are shown."""

import time

from nystromformer_jax.training.checkpoint import Record
from nystromformer_jax.training.speed import Stopwatch


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
