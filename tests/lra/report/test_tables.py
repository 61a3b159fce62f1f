"""Tables show what was measured, and mark what is incomplete."""

import pytest

from lra.report.groups import compare, group, read
from lra.report.tables import (
    comparisons_table,
    control,
    control_table,
    recall_groups,
    recall_table,
    runs_table,
    settings_table,
    table3,
)
from tests.lra.report.runs import FIVE, groups_in, write_diverged, write_run, write_seeds

SOFTMAX = {"name": "softmax"}
NONE = {"name": "none"}


def rows(table):
    """The cells of each row by its first cell."""
    return {row[0]: list(row[1:]) for row in table.itertuples(index=False, name=None)}


def test_cells_have_mean_deviation_and_number_of_seeds(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.38])
    write_diverged(tmp_path / "c", seed=2)
    write_run(tmp_path / "d", seed=3, finished=False)
    found = rows(table3(groups_in(tmp_path)))
    assert found["nystrom-64"] == ["37.00 ± 1.41 (n = 2 of 4, 1 diverged)"]


def test_only_tasks_of_this_code_are_columns_and_means_need_all_tasks(tmp_path):
    for task in FIVE[:4]:
        write_run(tmp_path / task, task=task, accuracy=0.5)
    write_run(tmp_path / "x", attention=SOFTMAX)
    table = table3(groups_in(tmp_path))
    assert list(table.columns) == ["test accuracy, %", "ListOps", "Text", "Retrieval", "Image"]
    assert rows(table)["softmax"] == ["36.00 (n = 1)", *["not run"] * 3]
    assert rows(table)["Nyströmformer"] == ["37.15", "65.52", "79.56", "41.58"]
    write_run(tmp_path / "last", task=FIVE[4], accuracy=0.5)
    table = table3(groups_in(tmp_path))
    assert rows(table)["nystrom-64"][-1] == "50.00 (n = 1)"
    assert rows(table)["Nyströmformer"][-1] == "58.95"


def test_partial_runs_are_shown_on_request_and_never_in_a_mean(tmp_path):
    for task in FIVE:
        write_run(tmp_path / task, task=task, partial=task == "image")
    write_run(tmp_path / "own", task="listops-short")
    groups = groups_in(tmp_path)
    table = table3(groups, more_tasks=["listops-short"])
    assert "Image" not in table.columns
    assert table.columns[-1] == "listops-short"  # shown on request, too
    table = table3(groups, include_partial=True)
    assert rows(table)["nystrom-64"][3] == "36.00 (n = 1), partial"
    assert not {"mean of 5", "listops-short"} & set(table.columns)


def test_complete_settings_of_one_label_have_a_row_each_and_else_the_furthest(tmp_path):
    for steps in (30, 50, 40):
        write_run(tmp_path / str(steps), steps=(10, steps), accuracy=steps / 100, partial=True)
    found = rows(table3(groups_in(tmp_path), include_partial=True))
    assert found["nystrom-64"] == ["50.00 (n = 1), partial"]
    for seed in (1, 2):
        write_run(tmp_path / f"complete-{seed}", config={"data": {"seed": seed}})
    found = rows(table3(groups_in(tmp_path), include_partial=True))
    assert list(found)[:3] == [
        "This code, the paper's recipe",
        "nystrom-64",
        "nystrom-64, data.seed=2",
    ]


def test_settings_have_errors_intervals_and_trivial_predictors(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.38, 0.37])
    validated = {"state": "validated", "test_accuracy": None}
    write_run(tmp_path / "b", attention=SOFTMAX, result=validated)
    table = settings_table(groups_in(tmp_path), {"constant answer": 17.2})
    assert table.iloc[0].to_dict() == {
        "attention": "nystrom-64",
        "seeds": "0, 1, 2",
        "test accuracy, %": "37.00 ± 1.00",
        "binomial error": "1.08",
        "95 % interval": "34.52 to 39.48",
        "validation, %": "25.00 ± 0.00",
        "steps": "20 of 5,000",
        "memory, GiB": "3.00",
        "parameters": "199,882",
    }
    found = rows(table)
    assert found["softmax"][1] == "not tested"
    assert found["constant answer"][1] == "17.20"


def test_every_run_has_a_row(tmp_path):
    write_run(tmp_path / "a", seed=0, partial=True)
    write_diverged(tmp_path / "b", seed=1)
    write_run(tmp_path / "c", seed=2, finished=False)
    runs = read([tmp_path])[0]
    found = rows(runs_table(runs, group(runs)))
    assert found["a"][3:6] == ["36.00 ± 1.07, partial", "20", "20 of 5,000"]
    assert found["b"][3:6] == ["diverged", "–", "12 of 5,000"]
    assert found["c"][3] == "unfinished"


def test_control_is_what_attention_adds(tmp_path):
    for name, accuracies in (("nystrom", [0.36, 0.38, 0.39]), ("none", [0.35, 0.36, 0.36])):
        attention = {"name": name} | ({"num_landmarks": 64} if name == "nystrom" else {})
        same = {"attention": attention, "recipe": "fast"}
        write_seeds(tmp_path / name, accuracies, **same)
        write_run(tmp_path / f"text-{name}", task="text", seed=0, **same)
    groups = groups_in(tmp_path)
    found = control(groups, "fast")
    assert list(found["difference"]) == pytest.approx([2.0, 0.0])
    compared = compare(groups)
    pairs = rows(comparisons_table(compared[compared["task"] == "listops"]))
    assert pairs["nystrom-64, recipe=fast − none, recipe=fast"][:2] == ["0, 1, 2", "+2.00"]
    cells = rows(control_table(found))
    assert cells["ListOps"][:3] == ["0, 1, 2", "0, 1, 2", "+2.00"]
    assert cells["Text"][3].endswith("binomial standard error")
    assert len(control(groups, "mega")) == 0
    # More seeds, but not with the training of the control.
    other = {"optimizer": {"warmup_steps": 5}}
    write_seeds(tmp_path / "other", [0.9] * 5, recipe="fast", config=other)
    assert list(control(groups_in(tmp_path), "fast")["difference"]) == pytest.approx([2.0, 0.0])


def test_recall_has_a_row_per_attention_and_a_column_per_number_of_pairs(tmp_path):
    for pairs, accuracy in ((4, 0.9), (16, 0.5)):
        write_run(tmp_path / f"{pairs}", task=f"mqar-64-{pairs}", accuracy=accuracy)
    write_run(tmp_path / "short", task="mqar-64-8", partial=True)
    write_run(tmp_path / "x", task="mqar-64-4", attention=SOFTMAX)
    table = recall_table(recall_groups(groups_in(tmp_path)))
    assert list(table.columns) == ["attention", "4 pairs", "16 pairs"]
    assert rows(table) == {
        "64 tokens": ["", ""],
        "nystrom-64": ["90.0", "50.0"],
        "softmax": ["36.0", "–"],
    }
