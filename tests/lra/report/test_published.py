"""Published rows are complete, and their means are correct."""

import pytest

from lra.data import TASKS
from lra.report.published import COLUMNS, FAILED, PATH_X, TABLE, baselines_of

ROWS = [(source, row) for source, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("source", "row"), ROWS, ids=lambda value: getattr(value, "model", ""))
def test_published_means_equal_the_means_of_their_rows(source, row):
    mean = sum(row.accuracies) / len(COLUMNS)
    assert len(row.accuracies) == len(COLUMNS)
    if row.model == "Sinkhorn":
        assert f"{mean:.2f}" in source.remark
    else:
        assert row.mean == pytest.approx(mean, abs=0.0051)


def test_a_failed_path_x_counts_as_chance_in_the_mean_of_six():
    bigbird = next(row for _, row in ROWS if row.model == "BigBird")
    assert bigbird.mean_of_six == pytest.approx((5 * 55.01 + 50) / 6, abs=0.01)
    assert {row.mean_of_six for _, row in ROWS if row.path_x != FAILED} == {None}


def test_columns_are_tasks_and_sources_are_links():
    assert {*COLUMNS, PATH_X} <= set(TASKS)
    assert all(source.url.startswith("https://") for source in TABLE)


def test_baselines_are_accuracies():
    for task in TASKS:
        assert all(0.1 <= level < 1 for level in baselines_of(task).values())
    assert baselines_of("pathfinder64-easy") == {"constant answer": 0.5}
