"""Tables are measured cell by cell, name their commands and machine, and resume with equal settings."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from benchmarks.table import Table, command_line, in_own_process, this_machine
from cli.commands import run_to_end

TIMED = {"device": "cpu", "device_count": 4, "processor": "Abacus", "cpu_threads": 3}
TIMED |= {"huge_pages": True, "versions": {"jax": "1.2.3"}}


def open_table(folder, words=()):
    return Table("program", folder / "out/table", TIMED, arguments=words)


def fill(table, *cells, **options):
    """Measures cells; returns the arguments of each measurement."""
    asked = []

    def measure(config, attentions):
        asked.append((config, attentions))
        if not options:
            return {"config": config, "attention": attentions}
        return [{"config": config, "attention": name} for name in attentions]

    table.fill(("config", "attention"), cells, measure, **options)
    return asked


def test_rows_are_written_and_only_missing_cells_are_measured(tmp_path, capsys):
    assert fill(open_table(tmp_path), ("text", "linear")) == [("text", "linear")]
    table = open_table(tmp_path, words=["--more"])
    assert fill(table, ("text", "linear"), ("text", "nystrom")) == [("text", "nystrom")]
    assert table.results["commands"] == ["python -m program", "python -m program --more"]
    again = open_table(tmp_path, words=["--nothing new"])
    assert fill(again, ("text", "nystrom")) == []
    capsys.readouterr()
    again.finish()
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["config", "attention"],
        ["text", "linear"],
        ["text", "nystrom"],
    ]


def test_peers_are_measured_together(tmp_path):
    table = open_table(tmp_path)
    fill(table, ("text", "linear"), peers=True)
    cells = [(config, name) for config in ("text", "image") for name in ("linear", "nystrom")]
    asked = fill(table, *cells, peers=True)
    assert asked == [("text", ["nystrom"]), ("image", ["linear", "nystrom"])]


def test_rows_are_stored_before_an_error(tmp_path):
    def measure(config, attention):
        if config == "image":
            raise OSError("disk")
        return {"config": config, "attention": attention}

    cells = [("text", "linear"), ("image", "linear")]
    with pytest.raises(OSError, match="disk"):
        open_table(tmp_path).fill(("config", "attention"), cells, measure)
    assert fill(open_table(tmp_path), *cells) == [("image", "linear")]


def stored(**settings):
    return {"settings": TIMED | settings, "commands": [], "rows": []}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("{}", "settings, commands"),
        ({"settings": None, "commands": [], "rows": []}, "without settings"),
        ("{", "JSON"),
        ("[]", "JSON object"),
        ({"settings": TIMED, "commands": [], "rows": [{"config": "a"}]}, "attention"),
        (stored(processor="Slate"), "processor 'Slate' in the file, 'Abacus' now"),
        (stored(versions={"jax": "1.2.2"}), "jax '1.2.2' in the file, '1.2.3' now"),
        (stored(heads=12), "heads"),
    ],
)
def test_other_files_and_other_settings_are_refused(tmp_path, content, word):
    (tmp_path / "out").mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "out/table.json").write_text(text)
    with pytest.raises(ValueError, match=word):
        fill(open_table(tmp_path), ("text", "linear"))
    assert (tmp_path / "out/table.json").read_text() == text


def test_the_command_and_the_machine_are_those_of_the_process(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/x.py", "--out", "y"])
    assert command_line("benchmarks.x") == "python -m benchmarks.x --out y"
    monkeypatch.delenv("NPROC", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 2, 5}, raising=False)
    found = this_machine("pytest", "no-such-package")
    assert found["cpu_threads"] == 3
    assert found["versions"]["pytest"] == pytest.__version__
    assert "no-such-package" not in found["versions"]


# --- Processes: what `in_own_process` calls -------------------------------------------------------


def interrupt(folder):
    Path(folder, "process").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(60)


def test_a_cell_runs_in_its_own_process_whose_error_is_raised():
    assert in_own_process(os.getpid) != os.getpid()
    with pytest.raises(ValueError, match=r"invalid literal .* 'two'"):
        in_own_process(int, "two")


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGKILL, MemoryError), (signal.SIGABRT, ChildProcessError)]
)
def test_a_killed_process_is_an_error(number, kind):
    with pytest.raises(kind, match="ended with"):
        in_own_process(signal.raise_signal, number)


def test_a_signal_ends_the_cell_and_keeps_the_rows(tmp_path):
    table = open_table(tmp_path)
    fill(table, ("text", "linear"))
    measure = lambda *_: in_own_process(interrupt, tmp_path)
    # Workers of pytest may lack the default handler of Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = run_to_end("program", lambda: table.fill(("config",), [("x",)], measure))
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 128 + signal.SIGINT
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "process").read_text()), 0)
    assert len(open_table(tmp_path).results["rows"]) == 1
