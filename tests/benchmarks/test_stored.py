"""Stored measurements name their commands and machine, and are resumed only with equal settings."""

import json

import pytest

from benchmarks.cells import (
    add_command,
    command_line,
    describe_source,
    open_results,
    this_machine,
    versions,
)

SETTINGS = {"processor": "Abacus", "versions": {"jax": "1.2.3", "numpy": "4.5"}}


def write(path, **changes):
    path.write_text(json.dumps({"settings": SETTINGS, "commands": ["a"], "rows": [1], **changes}))
    return path


def test_a_missing_file_has_no_rows(tmp_path):
    found = open_results(tmp_path / "new.json", SETTINGS, lists=("checks", "steps"))
    assert found == {"settings": SETTINGS, "commands": [], "checks": [], "steps": []}


def test_equal_settings_resume(tmp_path):
    assert open_results(write(tmp_path / "old.json"), SETTINGS)["rows"] == [1]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {**SETTINGS, "processor": "Slate"},
            "(processor 'Abacus' in the file, 'Slate' now): pass another",
        ),
        (
            {**SETTINGS, "versions": {"jax": "1.2.3", "numpy": "4.6"}},
            "(numpy '4.5' in the file, '4.6' now)",
        ),
        ({"versions": SETTINGS["versions"]}, "(processor 'Abacus' in the file, missing now)"),
    ],
)
def test_rejects_different_settings(tmp_path, settings, sentence):
    with pytest.raises(ValueError, match="different settings") as raised:
        open_results(write(tmp_path / "old.json"), settings)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "contains another table, without settings, commands, rows: pass another --out"),
        ('{"settings": null, "commands": [], "rows": [{}]}', "another table, without settings:"),
        ("{", "cannot be read as JSON"),
        ("[]", "must contain a JSON object"),
    ],
)
def test_rejects_other_files(tmp_path, content, sentence):
    file = tmp_path / "other.json"
    file.write_text(content)
    with pytest.raises(ValueError, match="other") as raised:
        open_results(file, SETTINGS)
    assert sentence in str(raised.value)


def test_rejects_rows_of_another_table(tmp_path):
    file = write(tmp_path / "old.json", rows=[{"config": "text", "chips": 1}, {"config": "image"}])
    assert len(open_results(file, SETTINGS, axes=["config"])["rows"]) == 2
    with pytest.raises(ValueError, match="contains another table, without chips, fixed: "):
        open_results(file, SETTINGS, axes=["fixed", "config", "chips"])


def test_a_resumed_command_is_named_once():
    results = {"commands": []}
    for command in ("one", "two", "one"):
        add_command(results, command)
    assert results["commands"] == ["one", "two"]


def test_the_source_has_commands_machine_and_versions():
    timed = {"device": "cpu", "device_count": 4, "processor": "Abacus", "cpu_threads": 3}
    settings = {**timed, "huge_pages": True, "versions": {"jax": "1.2.3"}}
    results = {"settings": settings, "commands": ["x --a", "x"]}
    assert describe_source(results) == "`x --a`, `x`: Abacus, 3 threads, huge pages; jax 1.2.3."
    settings |= {"device": "H200", "cpu_threads": 1, "huge_pages": False}
    assert describe_source(results) == "`x --a`, `x`: 4 × H200, host Abacus, 1 thread; jax 1.2.3."
    settings["topology"] = "v5e:1x1"
    assert "`: compiled ahead of time for v5e:1x1, not run; jax" in describe_source(results)
    results["settings"] = {"versions": {"jax": "1.2.3"}}
    assert "`: compiled ahead of time, not run; jax 1.2.3." in describe_source(results)


def test_this_machine_has_its_threads_and_versions(monkeypatch):
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2, 5}, raising=False)
    found = this_machine("pytest", "no-such-package")
    assert found["cpu_threads"] == 3
    assert found["versions"] == {**versions(), "pytest": pytest.__version__}


def test_the_command_is_that_of_the_process_by_default(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/x.py", "--out", "y"])
    assert command_line("benchmarks.x") == "python -m benchmarks.x --out y"
    assert command_line("benchmarks.x", ["--toy"]) == "python -m benchmarks.x --toy"
