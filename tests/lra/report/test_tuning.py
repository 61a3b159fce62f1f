"""Values that are compared on the validation set have a table of their own."""

import pytest

from lra.report.groups import read_groups
from lra.report.page import make
from lra.report.tuning import select_tested, tunings
from tests.lra.report.runs import groups_in, write_diverged, write_run

RATE = "optimizer.learning_rate"


def write_grid(folder, *, chosen):
    """Rates 1e-4 (validation 30, 40), 1e-3 (50, 50) and 1e-2 (60, diverged)."""
    for rate, accuracies in ((1e-4, (0.3, 0.4)), (1e-3, (0.5, 0.5)), (1e-2, (0.6, None))):
        for seed, accuracy in enumerate(accuracies):
            values = {"seed": seed, "config": {"optimizer": {"learning_rate": rate}}}
            path = folder / f"rate{rate}-seed{seed}"
            if accuracy is None:
                write_diverged(path, **values)
            elif rate == 1e-3 and chosen:
                write_run(path, accuracy=0.47, result={"valid_accuracy": accuracy}, **values)
            else:
                result = {"state": "validated", "valid_accuracy": accuracy, "test_accuracy": None}
                write_run(path, result=result, **values)
    return folder


@pytest.mark.parametrize("chosen", [True, False])
def test_settings_that_were_not_chosen_are_only_in_the_table_of_validation(tmp_path, chosen):
    groups = groups_in(write_grid(tmp_path / "grid", chosen=chosen))
    (tuning,) = tunings(groups)
    assert tuning.varying == [RATE]
    ((_, rows),) = tuning.table().sections
    assert sorted(rows) == [
        ["0.0001", "2", "35.00 ± 7.07", ""],
        ["0.001", "2", "50.00 ± 0.00", "tested" * chosen],
        ["0.01", "2, 1 diverged", "60.00", ""],
    ]
    assert [group.setting[RATE] for group in select_tested(groups)] == [1e-3] * chosen
    text, numbers, _ = make(*read_groups([tmp_path]), tmp_path / "report")
    assert "## Choice of values by validation" in text
    assert ("47.00" in text) == chosen
    assert text.count("60.00") == 1  # not in the tables of test accuracies
    assert len(numbers["tasks"].get("listops", {}).get("settings", [])) == chosen


def test_unfinished_settings_remain_in_the_tables_of_tests(tmp_path):
    write_run(tmp_path / "a", result={"state": "validated", "test_accuracy": None})
    write_run(tmp_path / "b", config={"optimizer": {"learning_rate": 3.0}}, finished=False)
    assert [group.setting[RATE] for group in select_tested(groups_in(tmp_path))] == [3.0]


def test_a_report_without_untested_runs_has_no_such_table(tmp_path):
    write_run(tmp_path / "a", config={"optimizer": {"learning_rate": 1e-4}})
    write_run(tmp_path / "b", config={"optimizer": {"learning_rate": 1e-3}})
    groups = groups_in(tmp_path)
    assert tunings(groups) == []
    assert select_tested(groups) == groups
