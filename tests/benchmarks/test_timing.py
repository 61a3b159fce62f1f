"""Blocks of calls, in turn, and the memory of a call."""

import itertools
import sys
import time

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.timing import added_bytes


class Clock:
    """A clock that calls advance by `seconds`, and the names of the calls in order."""

    def __init__(self, monkeypatch, **seconds):
        self.now, self.calls, self.seconds = 0.0, [], seconds
        for name in ("perf_counter", "process_time"):
            monkeypatch.setattr(timing.time, name, lambda: self.now)

    def blocks(self, **options):
        cases = {name: lambda name=name: self.call(name) for name in self.seconds}
        found = timing.in_blocks(cases, **options)
        after_compilation = self.calls[len(cases) :]
        return found, [(name, len(list(own))) for name, own in itertools.groupby(after_compilation)]

    def call(self, name):
        self.calls.append(name)
        self.now += self.seconds[name]


def test_each_round_has_a_block_of_six_calls_of_which_two_are_not_timed(monkeypatch):
    found, blocks = Clock(monkeypatch, ours=0.01, theirs=0.02).blocks()
    assert blocks == 5 * [("ours", 6), ("theirs", 6)]
    assert found["ours"]["runs"] == found["theirs"]["runs"] == 5 * 4
    assert found["theirs"]["median"] == pytest.approx(0.02)


def test_slow_calls_are_timed_once_a_block_and_alone_without_an_untimed_call(monkeypatch):
    found, blocks = Clock(monkeypatch, ours=0.01, theirs=0.5).blocks(rounds=3)
    assert blocks == 3 * [("ours", 6), ("theirs", 2)]
    assert found["theirs"]["runs"] == 3
    found, blocks = Clock(monkeypatch, ours=0.5).blocks(rounds=3)
    assert blocks == [("ours", 3)]
    assert found["ours"]["runs"] == 3


def test_a_case_that_has_used_its_share_stops_after_five_rounds(monkeypatch):
    _, blocks = Clock(monkeypatch, ours=0.01, theirs=5.0).blocks(rounds=9, budget_seconds=1)
    assert blocks == [*5 * [("ours", 6), ("theirs", 2)], ("ours", 4 * 6)]


@pytest.mark.parametrize(("threads", "low", "high"), [(1, 0, 0.01), (2, 0.02, 1)])
def test_processor_time_is_measured_on_one_thread(monkeypatch, threads, low, high):
    monkeypatch.setattr(timing, "describe_environment", lambda: {"cpu_threads": threads})
    times = timing.in_blocks({"sleep": lambda: time.sleep(0.02)}, rounds=3)
    assert low <= times["sleep"]["min"] <= high


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process set its mark back")
def test_counts_memory_that_a_call_frees_again():
    def run():
        return np.ones(2**27, np.uint8).sum()  # 128 MiB, gone at the end

    added_bytes(run)  # what the first call loads stays
    added = added_bytes(run)
    if added is None:
        pytest.skip("this kernel does not let a process set its mark back")
    assert 0.95 * 2**27 < added < 1.5 * 2**27  # the kernel counts in portions
    again = added_bytes(lambda: None)
    assert again is not None
    assert again < 2**25
