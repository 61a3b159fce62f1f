"""Cells run in their own processes, and are measured again with other options if memory runs out."""

import json
import os
import signal

import pytest

from benchmarks import cells

PROGRAM = """
import json, os, pathlib, signal, sys, time

size = next((int(word[7:]) for word in sys.argv if word.startswith("--size=")), 8)
name = sys.argv[sys.argv.index("--cell") + 1]
if name == "broken":
    sys.exit(3)
if name.startswith("SIG"):
    pathlib.Path(os.environ["PYTHONPATH"], name).write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.Signals[name])
    time.sleep(60)
if name == "silent":
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps({"name": name, "size": size, "fits": False}), flush=True)
if size > 2:
    os.kill(os.getpid(), signal.SIGKILL)
print(json.dumps({"name": name, "size": size, "fits": True}))
"""


SETTINGS = {"versions": {"jax": "1.2.3"}}


def collect(folder, monkeypatch, *names, line=str):
    (folder / "cellprogram.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr("sys.argv", ["cellprogram", "--out=table"])
    return cells.collect(
        "cellprogram",
        folder / "out/table",
        SETTINGS,
        ("name",),
        [(name,) for name in names],
        arguments=[],
        retry_arguments=lambda row: [] if row["fits"] else [f"--size={row['size'] // 2}"],
        markdown=lambda results: f"{len(results['rows'])} rows\n",
        line=line,
    )


def test_killed_cell_is_measured_again_with_other_options(tmp_path, monkeypatch):
    assert collect(tmp_path, monkeypatch, "one", "two") == 0
    results = json.loads((tmp_path / "out/table.json").read_text())
    assert results["rows"] == [{"name": name, "size": 2, "fits": True} for name in ("one", "two")]
    assert (tmp_path / "out/table.md").read_text() == (
        "`python -m cellprogram --out=table`: compiled ahead of time, not run; jax 1.2.3.\n\n2 rows\n"
    )


def test_a_table_with_other_axes_is_refused(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    out.mkdir()
    results = {"settings": SETTINGS, "commands": [], "rows": [{"config": "text"}]}
    (out / "table.json").write_text(json.dumps(results))
    assert collect(tmp_path, monkeypatch, "one") == 2
    assert "table.json contains another table, without name: pass" in capsys.readouterr().err


def test_a_row_is_stored_before_it_is_shown(tmp_path, monkeypatch):
    def line(row):
        raise BrokenPipeError

    assert collect(tmp_path, monkeypatch, "one", "two", line=line) == 1
    results = json.loads((tmp_path / "out/table.json").read_text())
    assert [row["name"] for row in results["rows"]] == ["one"]


def test_missing_table_is_written_from_stored_rows(tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    row = {"name": "one", "size": 2, "fits": True}
    results = {"settings": SETTINGS, "commands": ["python -m earlier"], "rows": [row]}
    (out / "table.json").write_text(json.dumps(results))
    assert collect(tmp_path, monkeypatch, "one") == 0
    text = (out / "table.md").read_text()
    assert text.startswith("`python -m earlier`: ")  # a command that measured nothing is not named
    assert text.endswith("\n\n1 rows\n")


@pytest.mark.parametrize(("name", "code"), [("broken", 3), ("silent", -9)])
def test_stops_with_the_exit_code_of_a_cell_without_output(
    tmp_path, monkeypatch, capsys, name, code
):
    assert collect(tmp_path, monkeypatch, "one", name, "two") == 1
    assert capsys.readouterr().err == f"cellprogram: {name} ended with {code}.\n"
    assert len(json.loads((tmp_path / "out/table.json").read_text())["rows"]) == 1


@pytest.fixture
def _handlers():
    """Default handlers, which workers of pytest may lack."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(numbers[0], signal.default_int_handler), signal.getsignal(numbers[1])]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_handlers")
def test_a_signal_ends_the_cell_and_keeps_the_rows(tmp_path, monkeypatch, capsys):
    assert collect(tmp_path, monkeypatch, "one", "SIGINT") == 130
    assert capsys.readouterr().err.startswith("cellprogram: stopped by Ctrl-C")
    with pytest.raises(SystemExit) as ended:
        collect(tmp_path, monkeypatch, "one", "SIGTERM")
    assert ended.value.code == 143
    for name in ("SIGINT", "SIGTERM"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)
    assert len(json.loads((tmp_path / "out/table.json").read_text())["rows"]) == 1
