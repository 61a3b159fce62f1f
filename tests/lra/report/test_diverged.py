"""Diverged runs are counted, and are not the same as unfinished runs."""

from lra.report.numbers import numbers
from lra.report.page import summary
from lra.report.tables import benchmark_table, runs_table, shortfalls, task_groups_table
from tests.lra.report.runs import groups_in, write_diverged, write_run


def cells(table):
    return [row for _, rows in table.sections for row in rows]


def test_a_diverged_run_is_counted_and_has_no_accuracy(tmp_path):
    write_run(tmp_path / "a", seed=0, accuracy=0.36)
    write_run(tmp_path / "b", seed=1, accuracy=0.38)
    write_diverged(tmp_path / "c", seed=2, step=12)
    write_run(tmp_path / "d", seed=3, finished=False)
    groups = groups_in(tmp_path)
    assert cells(benchmark_table(groups))[0][1] == "37.00 ± 1.41 (n = 2 of 4, 1 diverged)"
    assert cells(task_groups_table(groups))[0][1] == "0, 1 of 4, 1 diverged"
    rows = {row[1]: row[2:6] for row in cells(runs_table(groups))}
    assert rows["2"] == ["diverged", "–", "–", "12 of 5,000"]
    assert rows["3"] == ["not finished", "–", "–", "20 of 5,000"]
    assert shortfalls(groups) == [
        "ListOps, nystrom-64, seed 2: 12 of 5,000 steps, diverged.",
        "ListOps, nystrom-64, seed 3: 20 of 5,000 steps, not finished.",
    ]
    assert summary(groups).startswith("2 finished and 1 diverged of 4 runs, ")
    found = {run["seed"]: run for run in numbers(groups)["tasks"]["listops"]["runs"]}
    assert (found[2]["state"], found[2]["done_steps"]) == ("diverged", 12)
    assert "test_accuracy" not in found[2]
    assert numbers(groups)["tasks"]["listops"]["settings"][0]["diverged"] == 1


def test_a_setting_with_only_diverged_runs_is_marked(tmp_path):
    write_diverged(tmp_path / "a", seed=0)
    write_diverged(tmp_path / "b", seed=1)
    groups = groups_in(tmp_path)
    assert groups[0].state == "diverged"
    assert cells(benchmark_table(groups))[0][1] == "diverged"
    assert cells(task_groups_table(groups))[0][1:3] == ["0, 1", "diverged"]
    write_run(tmp_path / "c", seed=2, finished=False)
    table = benchmark_table(groups_in(tmp_path), include_partial=True)
    assert cells(table)[0][1] == "not finished"
    assert cells(benchmark_table(groups_in(tmp_path))) != cells(table)  # has no row
