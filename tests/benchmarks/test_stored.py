"""Stored measurements name their commands and machine, and are continued only with equal settings."""

import json

import pytest

from benchmarks.stored import command_of, open_results, source, this_machine, versions

SETTINGS = {"processor": "Abacus", "versions": {"jax": "1.2.3", "numpy": "4.5"}}


def write(path, **changes):
    path.write_text(json.dumps({"settings": SETTINGS, "commands": ["a"], "rows": [1], **changes}))
    return path


def test_a_missing_file_has_no_rows(tmp_path):
    found = open_results(tmp_path / "new.json", SETTINGS, "checks", "steps")
    assert found == {"settings": SETTINGS, "commands": [], "checks": [], "steps": []}


def test_rows_are_read_again(tmp_path):
    assert open_results(write(tmp_path / "old.json"), SETTINGS)["rows"] == [1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({**SETTINGS, "processor": "Slate"}, "(processor Abacus there, Slate here): pass another"),
        ({**SETTINGS, "versions": {"jax": "1.2.3", "numpy": "4.6"}}, "(numpy 4.5 there, 4.6 here)"),
        ({"versions": SETTINGS["versions"]}, "(processor Abacus there, None here)"),
    ],
)
def test_rejects_different_settings(tmp_path, settings, sentence):
    with pytest.raises(ValueError, match="different settings") as raised:
        open_results(write(tmp_path / "old.json"), settings)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("content", ["{}", '{"settings": {}, "rows": []}', "[]", "{"])
def test_rejects_other_files(tmp_path, content):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json .*(pass another|move it away|JSON object)"):
        open_results(file, SETTINGS)


def test_the_source_has_commands_machine_and_versions():
    timed = {"device": "cpu", "processor": "Abacus", "cpu_threads": 3, "huge_pages": True}
    settings = {**timed, "versions": {"jax": "1.2.3"}}
    results = {"settings": settings, "commands": ["x --a", "x"]}
    assert source(results) == "`x --a`, `x`: Abacus, 3 threads, huge pages; jax 1.2.3."
    settings |= {"device": "H200", "cpu_threads": 1, "huge_pages": False}
    assert source(results) == "`x --a`, `x`: H200 beside Abacus, 1 thread; jax 1.2.3."
    settings["topology"] = "v5e:1x1"
    assert source(results) == "`x --a`, `x`: compiled ahead of time, not run; jax 1.2.3."


def test_this_machine_has_its_threads_and_versions(monkeypatch):
    monkeypatch.setenv("NPROC", "7")
    found = this_machine("jax", "no-such-package")
    assert found["cpu_threads"] == 7
    assert found["versions"] == versions("jax")
    assert list(found["versions"]) == ["python", "jax"]


def test_the_command_is_that_of_the_process_by_default(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/x.py", "--out", "y"])
    assert command_of("benchmarks.x") == "python -m benchmarks.x --out y"
    assert command_of("benchmarks.x", ["--toy"]) == "python -m benchmarks.x --toy"
