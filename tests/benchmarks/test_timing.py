import sys
import time

import numpy as np
import pytest

from benchmarks import timing
from benchmarks.timing import added_bytes


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


@pytest.mark.parametrize(("threads", "low", "high"), [(1, 0, 0.01), (2, 0.02, 1)])
def test_processor_time_is_measured_on_one_thread(monkeypatch, threads, low, high):
    monkeypatch.setattr(timing, "describe_environment", lambda: {"cpu_threads": threads})
    times = timing.in_blocks({"sleep": lambda: time.sleep(0.02)}, rounds=3)
    assert low <= times["sleep"]["min"] <= high
