"""Which times count as a step's time."""

import time

import pytest

from nystromformer_jax.training import peak_bytes
from nystromformer_jax.training.checkpoint import Record
from nystromformer_jax.training.speed import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = [1000.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def advance(seconds):
        now[0] += seconds

    return advance


def test_pauses_are_excluded_and_input_is_a_fraction(clock):
    record = Record()
    stopwatch = Stopwatch(record, batch_size=32)
    clock(100)
    stopwatch.restart()  # compilation
    for _ in range(4):
        with stopwatch.input():
            clock(0.5)
        clock(1.5)
        stopwatch.step()
    with stopwatch.pause():
        clock(50)
    assert stopwatch.lap() == {"step_seconds": 2, "examples_per_second": 16, "input_share": 0.25}
    assert stopwatch.lap() == {}
    stopwatch.add_elapsed()
    assert (record.timed_steps, record.timed_seconds, record.input_seconds) == (4, 8, 2)
    assert record.train_seconds == 158


def test_peak_bytes_is_in_bytes():
    assert 50e6 < peak_bytes() < 1e12
