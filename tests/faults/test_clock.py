"""No number of a run depends on the wall clock, which may jump."""

import time

import numpy as np
import pytest

from tests.training import tiny

# Added at random to every reading. Longer jumps during a save look like a timeout to Orbax.
JUMP_SECONDS = 60


@pytest.mark.slow(minutes=0.1)
def test_clock_jumps_change_no_bits_and_no_durations(tmp_path, monkeypatch):
    tiny.train(tmp_path / "steady")
    wall, rng = time.time, np.random.default_rng(0)
    monkeypatch.setattr(time, "time", lambda: wall() + rng.uniform(-JUMP_SECONDS, JUMP_SECONDS))
    monkeypatch.setattr(time, "time_ns", lambda: int(time.time() * 1e9))
    began = time.perf_counter()
    outcome = tiny.train(tmp_path / "jumping")
    seconds = time.perf_counter() - began
    assert 0 < outcome.train_seconds < seconds
    speeds = tiny.lines_of(tmp_path / "jumping", "speed.jsonl")
    assert speeds
    for speed in speeds:
        assert 0 < speed["step_seconds"] < seconds
        assert 0 <= speed["input_share"] <= 1
    tiny.assert_same_run(tmp_path / "steady", tmp_path / "jumping")
