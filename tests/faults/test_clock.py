"""No number of a run depends on the wall clock, which may jump."""

import json
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
    speeds = list(map(json.loads, (tmp_path / "jumping/speed.jsonl").read_text().splitlines()))
    assert speeds
    for speed in speeds:
        assert 0 < speed["step_seconds"] < seconds
        assert 0 <= speed["input_share"] <= 1
    steady, jumping = (tmp_path / name / "metrics.jsonl" for name in ("steady", "jumping"))
    assert steady.read_bytes() == jumping.read_bytes()
    np.testing.assert_array_equal(
        tiny.last_params(tmp_path / "steady", 30), tiny.last_params(tmp_path / "jumping", 30)
    )
