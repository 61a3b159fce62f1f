"""The command line of the benchmarks, and the files it writes."""

import pytest

from benchmarks import __main__ as benchmarks


@pytest.mark.parametrize("config", ["retrieval", "glue", "common", "listop"])
def test_a_config_without_another_implementation_is_an_error(config, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["benchmarks", "--config", config])
    with pytest.raises(SystemExit) as stop:
        benchmarks.main()
    assert stop.value.code == 2
    assert f"invalid choice: '{config}' (choose from" in capsys.readouterr().err


def test_a_name_may_have_a_dot_in_it(tmp_path):
    machine = dict.fromkeys(("cores", "processor", "huge_pages", "python"), 2) | {"versions": {}}
    times = {name: {"median": 0.5} for name in ("ours", "Hugging Face")}
    step = {"task": "listops", "batch_size": 3, "length": 7, "step": times}
    results = {"machine": machine, "command": "", "training_step": step}
    benchmarks.write(results, tmp_path / "out" / "jax-0.10")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"jax-0.10.json", "jax-0.10.md"}
