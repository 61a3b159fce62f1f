"""The command: files for one run and for many, and errors."""

import csv
import json
import re

import pytest

from lra import report, train
from lra.report.__main__ import main
from lra.report.numbers import numbers
from tests.lra.report.runs import FIVE, groups_in, write_run, write_seeds
from tests.lra.report.test_labels import config
from tests.reporting.html import check


def run(*arguments):
    return main([str(argument) for argument in arguments])


def written(folder):
    return sorted(file.name for file in folder.iterdir())


def test_sentences_report_each_seed_and_all_seeds():
    result = {"task": "listops", "attention": "nystrom", "test_examples": 2000}
    result |= {"valid_accuracy": 0.25, "best_step": 1500}
    results = [result | {"test_accuracy": accuracy} for accuracy in (0.36, 0.37, 0.38)]
    assert "36.00 ± 1.07 % on 2,000 examples" in train.describe_result(results[0])
    together = train.describe_seeds(results)
    assert "3 seeds: test accuracy 37.00 %, standard deviation 1.00" in together
    assert "± 2.48 (36.00, 37.00, 38.00)" in together


def test_one_run_gives_a_table_and_a_figure(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert run(folder, "--out", tmp_path / "out" / "listops-0.1") == 0
    assert written(tmp_path / "out") == [
        f"listops-0.1{ending}"
        for ending in ("-curves-listops.png", ".csv", ".html", ".json", ".md", ".tex")
    ]
    page = (tmp_path / "out" / "listops-0.1.md").read_text()
    assert "| nystrom-64 | 3 | 36.00 ± 1.07 | 25.00 | 20 | 20 of 5,000 | 0.976 |" in page
    assert "(listops-0.1-curves-listops.png)" in page
    assert capsys.readouterr().out == page


def test_a_timed_run_has_a_figure_of_its_time(tmp_path):
    folder = write_run(tmp_path / "run", step_seconds=6)
    assert run(folder, "--out", tmp_path / "out" / "mine") == 0
    assert "mine-time-listops.png" in written(tmp_path / "out")
    assert "(mine-time-listops.png)" in (tmp_path / "out" / "mine.md").read_text()
    assert len(check((tmp_path / "out" / "mine.html").read_text()).loads) == 2


def test_report_may_be_written_into_the_run_folder(tmp_path):
    folder = write_run(tmp_path / "run")
    assert run(folder, "--out", folder / "report") == 0
    assert run(tmp_path, "--out", folder / "report") == 0
    assert (folder / "report-curves-listops.png").read_bytes()[:4] == b"\x89PNG"


@pytest.fixture
def many(tmp_path):
    """Five tasks, an ablation, seeds, a partial run, an unfinished one and one of another task."""
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / "main" / task, [0.3 + number / 50, 0.31 + number / 40], task=task)
    softmax = {"name": "softmax"}
    write_seeds(tmp_path / "softmax", [0.36, 0.35], attention=softmax)
    write_run(tmp_path / "short", task="listops-short", attention=softmax, partial=True)
    write_run(tmp_path / "going", task="text", seed=5, finished=False)
    for landmarks in (16, 32, 64):
        for iters in (2, 6):
            attention = {"name": "nystrom", "num_landmarks": landmarks, "pinv_iters": iters}
            place = tmp_path / "ablation" / f"{landmarks}-{iters}"
            write_run(place, task="image", attention=attention, partial=True, steps=(30,), seed=0)
    return tmp_path


@pytest.mark.slow(minutes=0.1)
def test_many_runs_give_a_complete_page(many, capsys):
    assert run(many, "--out", many / "out" / "report") == 0
    assert {f"report-curves-{task}.png" for task in FIVE} <= set(written(many / "out"))
    assert "report-tradeoff.png" in written(many / "out")
    checker = check((many / "out" / "report.html").read_text())
    assert all(source.startswith("data:image/png;base64,") for source in checker.loads)
    assert len(checker.loads) == len(FIVE) + 2  # and the other task's, and the speeds


@pytest.mark.slow(minutes=0.1)
def test_json_has_the_numbers_of_the_tables(many):
    assert run(many, "--out", many / "out" / "report") == 0
    numbers = set()

    def collect(value):
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)
        elif isinstance(value, int | float):
            numbers.add(f"{value:.2f}")
            numbers.add(f"{abs(value):.3f}")

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    content = json.loads((many / "out" / "report.json").read_text(), parse_constant=refuse)
    assert content.keys() == {"table3", "published", "tasks"}
    image = content["tasks"]["image"]
    assert [len(image[key]) for key in ("settings", "runs", "comparisons", "grids")] == [7, 8, 5, 1]
    collect(content)
    page = (many / "out" / "report.md").read_text().partition("## How it was measured")[0]
    rows = [line.replace("−", "-") for line in page.splitlines() if line.startswith("| ")]
    shown = [number for row in rows for number in re.findall(r"(?<![\d.,])-?\d+\.\d\d\d?\b", row)]
    gibibytes = {"3.00"}  # the JSON has bytes
    assert len(shown) > 200
    assert set(shown) - gibibytes <= numbers


def test_tables_of_the_readme(many):
    groups, left_out = report.read_groups([many])
    assert left_out == []
    assert "| nystrom-64 | 30.50 ± 0.71 (n = 2) |" in report.table3(groups)
    assert "| **Xiong et al. 2021, Table 3** |" in report.table3(groups)
    assert report.task_table(groups, "text").count("\n") == 6
    with pytest.raises(ValueError, match="No run has the task 'pathx'; known tasks: listops, text"):
        report.task_table(groups, "pathx")


def test_the_latex_table_has_own_tasks_and_chosen_columns_and_sources(many):
    write_run(many / "own", task="my_package.tasks:Parity", accuracy=0.75, seed=0)
    out = many / "out" / "report"
    assert run(many, "--out", out) == 0
    assert "& Parity" in (tex := out.with_suffix(".tex").read_text())
    assert "75.00 (n = 1)" in tex
    chosen = ("--columns", "Parity", "ListOps", "--without_n", "--sources", "Xiong")
    assert run(many, "--out", out, *chosen) == 0
    lines = out.with_suffix(".tex").read_text().splitlines()
    assert lines[2] == r"test accuracy, \% & Parity & ListOps \\"
    assert any(line.endswith("& 30.50 $\\pm$ 0.71 \\\\") for line in lines)
    titles = [line for line in lines if "multicolumn" in line]
    assert all("This code" in title or "Xiong" in title for title in titles)
    assert run(many, "--out", out, "--columns", "Parety") == 2


def test_flags_add_published_rows_and_partial_runs_to_every_format(many, capsys):
    (many / "rows.csv").write_text("model,source,listops\nS4,Gu et al.,58.35\n")
    out = many / "out" / "report"
    assert run(many, "--out", out, f"--published={many}/rows.csv", "--include_partial") == 0
    assert "| S4 | 58.35 | – | – | – | – | – | – | – |" in out.with_suffix(".md").read_text()
    assert "\n* Gu et al.\n" in out.with_suffix(".md").read_text()
    assert r"S4 & 58.35 & -- & -- & -- & -- & -- & -- & --" in out.with_suffix(".tex").read_text()
    lines = list(csv.DictReader(out.with_suffix(".csv").read_text().splitlines()))
    assert {"source": "Gu et al.", "task": "listops", "mean": "58.35"}.items() <= lines[-1].items()
    (ours,) = (
        line
        for line in lines
        if (line["source"], line["task"], line["attention"]) == ("This code", "listops", "softmax")
    )
    assert (float(ours["mean"]), ours["n"]) == (pytest.approx(35.5), "2")
    capsys.readouterr()
    assert run(many, "--out", out, f"--published={many}/none.csv") == 2
    assert "none.csv: No such file or directory" in capsys.readouterr().err


def test_mean_in_the_json_is_over_five_complete_tasks(tmp_path):
    for task in FIVE[:4]:
        write_run(tmp_path / task, task=task, accuracy=0.3)
    write_run(tmp_path / "five", task=FIVE[4], accuracy=0.9, partial=True)
    assert numbers(groups_in(tmp_path))["table3"][0]["mean_of_5"] is None
    write_run(tmp_path / "whole", task=FIVE[4], accuracy=0.8, seed=4)
    mean = numbers(groups_in(tmp_path))["table3"][0]["mean_of_5"]
    assert mean["mean"] == pytest.approx(40)
    assert mean["deviation"] is None
    assert numbers(groups_in(tmp_path))["table3"][0]["mean_of_6"] is None


def test_json_has_the_track_of_a_run(tmp_path):
    write_run(tmp_path / "paper")
    write_run(tmp_path / "fast", config=config("softmax,recipe=fast"), seed=0)
    content = numbers(groups_in(tmp_path))
    assert {row["attention"]: row["track"] for row in content["table3"]} == {
        "nystrom-64": "paper",
        "softmax, recipe=fast": "fast",
    }
    cells = content["tasks"]["listops"]["settings"]
    assert sorted(cell["track"] for cell in cells) == ["fast", "paper"]


def test_invalid_runs_print_one_sentence_and_write_nothing(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    run_folder = write_run(tmp_path / "runs" / "a")
    (write_run(tmp_path / "broken" / "b", seed=1) / "result.json").write_text('{"task": "lis')
    (tmp_path / "file").write_text("")
    for folder, out, words in (
        (tmp_path / "empty", "x", "contains no run"),
        (tmp_path / "nowhere", "x", "does not exist"),
        (tmp_path / "broken", "x", "result.json cannot be read as JSON"),
        (run_folder, "file/x", "file"),
    ):
        assert run(folder, "--out", tmp_path / out) == 2
        error = capsys.readouterr().err
        assert error.startswith("lra.report: ")
        assert words in error
        assert error.count("\n") == 1
    assert written(tmp_path) == ["broken", "empty", "file", "runs"]


def test_a_failed_report_keeps_the_old_one(tmp_path, monkeypatch, capsys):
    folder = write_run(tmp_path / "run")
    assert run(folder, "--out", tmp_path / "out" / "report") == 0
    before = {name: (tmp_path / "out" / name).read_bytes() for name in written(tmp_path / "out")}
    write_run(tmp_path / "other", seed=4)

    def fail(*_):
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("reporting.writer.html_page", fail)
    assert run(tmp_path, "--out", tmp_path / "out" / "report") == 1
    assert "report.html: No space left on device" in capsys.readouterr().err
    after = {name: (tmp_path / "out" / name).read_bytes() for name in written(tmp_path / "out")}
    assert after == before
