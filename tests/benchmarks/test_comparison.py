"""The comparison with other implementations, and what it writes."""

import json
from pathlib import Path

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.peers
def test_rows_are_saved_as_they_are_measured(results, tmp_path, monkeypatch):
    pytest.importorskip("benchmarks.peers", reason="needs the extra `peers`", exc_type=ImportError)
    stored = json.loads((results / "benchmarks/cpu.json").read_text())["attention"]
    rows = iter(stored[:2])

    def times(*cell):
        for row in rows:
            return row
        raise OSError("interrupted")

    monkeypatch.setattr(benchmarks, "_times", times)
    out = tmp_path / "new/jax-0.10"
    words = ["benchmarks", "--only=attention", "--lengths=512", f"--out={out}"]
    monkeypatch.setattr("sys.argv", words)
    assert benchmarks.main() == 2
    assert json.loads(Path(f"{out}.json").read_text())["attention"] == stored[:2]
    assert "| functions, n |" in Path(f"{out}.md").read_text()


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
