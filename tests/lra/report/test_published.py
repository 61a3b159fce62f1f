"""Published rows are complete, and their means are correct."""

import pytest

from lra.report.published import (
    COLUMNS,
    PATH_X,
    TABLE,
)

ROWS = {(source, row["model"]): row for source, rows in TABLE.items() for row in rows}


@pytest.mark.parametrize(
    ("source", "model"), ROWS, ids=lambda value: getattr(value, "title", value)
)
def test_published_means_equal_the_means_of_their_rows(source, model):
    row = ROWS[source, model]
    mean = sum(row[task] for task in COLUMNS) / len(COLUMNS)
    if model == "Sinkhorn":
        assert f"{mean:.2f}" in source.remark
    else:
        assert row["mean of 5"] == pytest.approx(mean, abs=0.0051)


def test_a_failed_path_x_counts_as_chance_in_the_mean_of_six():
    bigbird = next(row for row in ROWS.values() if row["model"] == "BigBird")
    assert bigbird["mean of 6"] == pytest.approx((5 * 55.01 + 50) / 6, abs=0.01)
    mega = next(row for row in ROWS.values() if row["model"] == "MEGA")
    assert mega["mean of 6"] == pytest.approx(88.21, abs=0.01)  # as in the paper
    assert not any("mean of 6" in row for row in ROWS.values() if PATH_X not in row)
