"""The page opens with the verdict; the command writes all files or none."""

import pandas as pd
import pytest

from lra.report.__main__ import main
from lra.report.page import best_recipe, verdict
from tests.lra.report.runs import groups_in, write_run, write_seeds

NONE = {"name": "none"}


@pytest.fixture
def runs(tmp_path):
    """Two tasks with and without attention, of which one is easy for a trivial predictor."""
    folder = tmp_path / "runs"
    for task, ours, none, trivial in (("listops", 0.5, 0.4, 0.3), ("text", 0.8, 0.79, 0.78)):
        more = {"task": task, "recipe": "fast", "result": {"baselines": {"a rule": trivial}}}
        write_seeds(folder / task, [ours - 0.01, ours, ours + 0.01], **more)
        write_seeds(
            folder / f"{task}-none", [none - 0.01, none, none + 0.02], attention=NONE, **more
        )
    write_run(folder / "stopped", attention={"name": "softmax"}, finished=False)
    write_run(folder / "recall", task="mqar-64-4")
    return folder


def best_of(groups, trivial=None):
    trivial = {task: {"a rule": value} for task, value in (trivial or {}).items()}
    return best_recipe(groups[~groups["task"].str.startswith("mqar")], trivial)


def test_verdict_compares_with_the_paper_the_control_and_a_trivial_predictor(runs):
    groups = groups_in(runs)
    text = verdict(groups, best_of(groups, {"listops": 30.0, "text": 78.0}))
    assert text.count(". ") == 4
    assert "nystrom-64 with recipe=fast, beats the paper's Nyströmformer" in text
    assert "on ListOps and Text it reaches 65.0 % on average, the paper 51.3 %" in text
    assert "Attention adds 9.7 ± 1.4 points on ListOps and 0.7 ± 1.4 points on Text" in text
    assert "A trivial predictor comes within 5 points of it on Text" in text
    assert "with a standard deviation of at most 1.0 points" in text
    assert text.endswith("1 unfinished.")


def test_the_best_recipe_has_the_most_complete_tasks(tmp_path):
    write_run(tmp_path / "a", accuracy=0.9, attention=NONE)
    best = best_of(groups_in(tmp_path))
    assert best["without attention"].isna().all()  # it is not its own control
    write_run(tmp_path / "b", accuracy=0.3, recipe="fast")
    write_run(tmp_path / "c", accuracy=0.3, recipe="fast", task="text")
    assert list(best_of(groups_in(tmp_path))["task"]) == ["listops", "text"]


def test_command_writes_the_page_and_its_files(runs, tmp_path, capsys):
    assert main([str(runs), f"--out={tmp_path}/out/x", "--include_partial"]) == 0
    names = {file.name.removeprefix("x") for file in (tmp_path / "out").iterdir()}
    pictures = {"-bars.png", "-curves-listops.png", "-curves-text.png", "-recall.png"}
    assert names == {".md", ".html", ".csv", ".runs.csv", ".tex", *pictures}
    page = capsys.readouterr().out
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Long Range Arena: results",
        "## Comparison with published results",
        "## ListOps",
        "## Text",
        "## Associative recall (MQAR)",
        "## Every run",
        "## Sources",
    ]
    assert "| Nyströmformer | 37.15 | " in page
    table = pd.read_csv(tmp_path / "out" / "x.runs.csv")
    assert len(table) == 14
    assert set(table["config.train.batch_size"]) == {32}
    assert table["command"].str.startswith("python run_lra.py").all()
    groups = pd.read_csv(tmp_path / "out" / "x.csv")
    assert sorted(groups[groups["task"] == "text"]["mean"]) == pytest.approx([79.333, 80], abs=1e-2)


def test_unfinished_runs_of_an_unpublished_task_have_curves_and_no_table(tmp_path, capsys):
    write_run(tmp_path / "a", task="listops-short", finished=False)
    assert main([str(tmp_path), f"--out={tmp_path}/x"]) == 0
    page = capsys.readouterr().out
    assert "Settings without a complete run do not count: 1 unfinished." in page
    assert "cannot be compared with published" in page
    assert "## Comparison" not in page
    assert "| nystrom-64 | 3 | not finished |" in page


def test_an_error_is_one_line_and_writes_nothing(tmp_path, capsys):
    assert main([f"{tmp_path}/missing", f"--out={tmp_path}/x"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lra.report: ")
    assert ("missing" in error, error.count("\n")) == (True, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ours", "none", "more", "expected"),
    [
        ([0.5, 0.52], [0.4, 0.43], {}, "Attention adds 9.5 points on ListOps to"),
        ([0.5, 0.51, 0.52], [0.4, 0.41, 0.42], {}, "Attention adds 10.0 ± 0.0 points"),
        ([0.5], [0.4], {}, "Attention adds 10.0 ± 1.6 points"),
        ([0.5], [0.4], {"steps": (10, 40)}, ""),  # another budget
        ([0.5], [0.4], {"config": {"model": {"width": 3}}}, ""),  # another model
    ],
)
def test_what_attention_adds_has_an_error_if_it_is_known(tmp_path, ours, none, more, expected):
    write_seeds(tmp_path / "a", ours)
    write_seeds(tmp_path / "b", none, attention=NONE, **more)
    groups = groups_in(tmp_path)
    text = verdict(groups, best_of(groups))
    assert expected in text
    assert ("Attention adds" in text) == bool(expected)
    assert "nan" not in text


@pytest.mark.parametrize(
    ("trivial", "word"), [(40.0, "is better on ListOps"), (33.0, "within 5"), (9.0, "at least 5")]
)
def test_verdict_says_how_far_trivial_predictors_are(tmp_path, trivial, word):
    write_run(tmp_path / "a", accuracy=0.36)
    groups = groups_in(tmp_path)
    text = verdict(groups, best_of(groups, {"listops": trivial}))
    assert word in text
    assert "1 seed." in text
