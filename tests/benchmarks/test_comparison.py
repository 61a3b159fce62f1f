"""The command line of the comparison with other implementations, and what it writes."""

import json

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize(
    ("argument", "word"),
    [
        *((f"--config={name}", "invalid choice") for name in ("retrieval", "glue", "listop")),
        ("--rounds=0", "--rounds"),
        ("--lengths=0", "multiples of 64"),
        ("--lengths=1000", "multiples of 64"),
    ],
)
def test_rejects_impossible_values(argument, word, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", argument])
    with pytest.raises(SystemExit) as stop:
        benchmarks.main()
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


@pytest.mark.peers
def test_rows_are_saved_as_they_are_measured(results, tmp_path, monkeypatch):
    pytest.importorskip("benchmarks.peers", reason="needs the extra `peers`", exc_type=ImportError)
    stored = json.loads((results / "benchmarks/cpu.json").read_text())["attention"]
    functions, modules = stored[:2]
    left = [modules, functions]

    def times(*cell):
        if not left:
            raise OSError("interrupted")
        return left.pop()

    monkeypatch.setattr(benchmarks, "_times", times)
    words = [
        "benchmarks",
        "--only=attention",
        "--lengths=512",
        f"--out={tmp_path / 'new/jax-0.10'}",
    ]
    monkeypatch.setattr("sys.argv", words)
    assert benchmarks.main() == 2
    assert json.loads((tmp_path / "new/jax-0.10.json").read_text())["attention"] == stored[:2]
    assert "| functions, n |" in (tmp_path / "new/jax-0.10.md").read_text()


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
