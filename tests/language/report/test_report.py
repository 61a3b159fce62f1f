"""The command: its files and errors."""

import json

import pytest

from language.report.__main__ import main
from tests.language.report.runs import write_glue, write_pretraining


def run(*arguments):
    return main([str(argument) for argument in arguments])


def written(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.fixture
def many(tmp_path):
    folder = tmp_path / "runs"
    for seed, value in enumerate((0.9, 0.91)):
        write_glue(folder / f"sst2-{seed}", seed=seed, value=value)
        write_pretraining(folder / f"pretraining-{seed}", seed=seed)
    write_glue(folder / "mnli", "mnli", value=0.7, versions={"jax": "0.9"})
    write_glue(folder / "stsb", "stsb", value=0.8)
    return folder


def test_page_and_numbers_are_complete(many, tmp_path, capsys):
    assert run(many, "--out", tmp_path / "out" / "language") == 0
    assert written(tmp_path / "out") == [
        f"language{end}" for end in ("-pretraining.png", ".json", ".md")
    ]
    page = (tmp_path / "out" / "language.md").read_text()
    assert capsys.readouterr().out == page
    headings = [line for line in page.splitlines() if line.startswith("#")]
    assert headings == [
        "# Language model: results",
        "## Fine-tuning compared with the paper",
        "## Pretraining",
        "## SST-2",
        "## MNLI",
        "## STS-B",
        "## How it was measured",
    ]
    assert "(language-pretraining.png)" in page
    assert "* All others: jax 0.10.2." in page
    assert "* mnli: jax 0.9." in page

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    numbers = json.loads((tmp_path / "out" / "language.json").read_text(), parse_constant=refuse)
    (row,) = numbers["table2"]
    assert row["SST-2"]["mean"] == pytest.approx(0.905)
    assert row["MNLI-mm"]["mean"] == pytest.approx(0.69)
    assert row["MNLI-mm"]["deviation"] is None
    assert numbers["published_percent"]["Nyströmformer"]["MRPC, F1"] == 88.1
    assert [(one["kind"], one["task"], len(one["runs"])) for one in numbers["settings"]] == [
        ("pretrain", "", 2),
        ("glue", "sst2", 2),
        ("glue", "mnli", 1),
        ("glue", "stsb", 1),
    ]


def test_without_pretraining_there_is_no_picture(tmp_path):
    write_glue(tmp_path / "run")
    assert run(tmp_path, "--out", tmp_path / "out" / "x") == 0
    assert written(tmp_path / "out") == ["x.json", "x.md"]
    assert "Pretraining" not in (tmp_path / "out" / "x.md").read_text()


def test_without_fine_tuning_there_is_no_table_2(tmp_path):
    write_pretraining(tmp_path / "run")
    assert run(tmp_path / "run", "--out", tmp_path / "run" / "report") == 0
    assert "BERT-base" not in (tmp_path / "run" / "report.md").read_text()


def test_duplicate_runs_are_reported_on_the_page_and_on_stderr(tmp_path, capsys):
    write_glue(tmp_path / "a")
    write_glue(tmp_path / "b")
    assert run(tmp_path, "--out", tmp_path / "out" / "x") == 0
    captured = capsys.readouterr()
    assert "b is left out: " in captured.err
    assert "* " + captured.err.removeprefix("language.report: ") in captured.out


def test_unreadable_runs_print_one_line_and_write_nothing(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (write_glue(tmp_path / "broken") / "result.json").write_text('{"kind": "gl')
    good = write_glue(tmp_path / "good")
    (tmp_path / "file").write_text("")
    for folder, out, words in (
        (tmp_path / "empty", "x", "contains no finished run"),
        (tmp_path / "broken", "x", "cannot be read as JSON"),
        (good, "file/x", "file"),
    ):
        assert run(folder, "--out", tmp_path / out) == 2
        error = capsys.readouterr().err
        assert error.startswith("language.report: ")
        assert words in error
        assert error.count("\n") == 1
    assert written(tmp_path) == ["broken", "empty", "file", "good"]
    with pytest.raises(SystemExit):
        run(good, "--out", ".")


def test_failed_report_keeps_the_old_one(many, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert run(many, "--out", out / "x") == 0
    before = {name: (out / name).read_bytes() for name in written(out)}
    write_glue(many / "new", seed=8)

    def fail(*_):
        raise OSError(28, "No space left on device", "x.json")

    monkeypatch.setattr("language.report.page.numbers", fail)
    assert run(many, "--out", out / "x") == 1
    assert "x.json: No space left on device" in capsys.readouterr().err
    assert {name: (out / name).read_bytes() for name in written(out)} == before
