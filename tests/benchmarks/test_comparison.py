"""The comparison with other implementations."""

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.peers
@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize("comparison", ["functions", "modules"])
def test_all_implementations_are_timed(comparison):
    reason = "needs the extra `peers`"
    peers = pytest.importorskip("benchmarks.peers", reason=reason, exc_type=ImportError)
    row = benchmarks._times(peers.call_of, 1, 128, 33, True, comparison)
    names = {"functions": "exact (PyTorch)", "modules": "lucidrains"}
    for mode in ("forward", "gradient"):
        assert row[mode].keys() >= {"ours", names[comparison]}
        assert min(times["median"] for times in row[mode].values()) > 0
