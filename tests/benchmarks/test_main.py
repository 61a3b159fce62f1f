"""The command line of the benchmarks, and the files it writes."""

import json

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import report
from benchmarks.cells import this_machine


@pytest.mark.parametrize("config", ["retrieval", "glue", "common", "listop"])
def test_rejects_a_config_without_another_implementation(config, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--config", config])
    with pytest.raises(SystemExit) as stop:
        benchmarks.main()
    assert stop.value.code == 2
    assert f"invalid choice: '{config}' (choose from" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--rounds=0", "--lengths=0", "--lengths=1000"])
def test_rejects_impossible_numbers(argument, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", argument])
    with pytest.raises(SystemExit) as stop:
        benchmarks.main()
    assert stop.value.code == 2
    said = "--rounds must be 1 or more, and --lengths must be multiples of 64"
    assert said in capsys.readouterr().err


def test_output_name_may_contain_a_dot(tmp_path):
    times = {name: {"median": 0.5} for name in ("ours", "Hugging Face")}
    step = {"task": "listops", "batch_size": 3, "length": 7, "step": times}
    results = {"settings": this_machine(), "commands": [], "training_step": step}
    benchmarks.write(results, tmp_path / "out" / "jax-0.10")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"jax-0.10.json", "jax-0.10.md"}


@pytest.mark.peers
def test_rows_are_saved_as_they_are_measured(results, tmp_path, monkeypatch):
    reason = "needs the extra `peers`"
    attention = pytest.importorskip("benchmarks.attention", reason=reason, exc_type=ImportError)
    row, *_ = json.loads((results / "benchmarks/cpu.json").read_text())["attention"]

    def rows(lengths, rounds):
        yield row
        raise OSError("interrupted")

    monkeypatch.setattr(attention, "rows", rows)
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only=attention", f"--out={tmp_path / 'out'}"])
    assert benchmarks.main() == 2
    assert json.loads((tmp_path / "out.json").read_text())["attention"] == [row]
    assert (tmp_path / "out.md").is_file()


def test_stored_results_are_formatted(results):
    stored = json.loads((results / "benchmarks/cpu.json").read_text())
    assert ": AMD EPYC, 2 threads, huge pages; python 3." in report.markdown(stored)
