"""Published rows are complete, and their means are correct."""

import json

import pytest

from lra.report.published import (
    COLUMNS,
    FAILED,
    PATH_X,
    TABLE,
    read_published,
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


CSV = """model,source,url,remark,listops,text,retrieval,image,pathfinder32,pathfinder128,mean_of_5
S4,"Gu et al. 2022, v2",https://arxiv.org/abs/2111.00396,Larger models.,58.35,76.02,87.09,87.26,86.05,88.10,
Mine,Ours,,,37,,,,,✗,
"""


def test_rows_of_a_file_have_means_if_they_are_complete(tmp_path):
    (tmp_path / "rows.csv").write_text(CSV)
    found = read_published(tmp_path / "rows.csv")
    (s4,), (mine,) = found.values()
    assert s4["mean of 5"] == pytest.approx(78.954)
    assert s4["mean of 6"] == pytest.approx(80.478, abs=1e-3)
    assert mine == {"model": "Mine", "listops": 37, PATH_X: FAILED}
    assert [source.title for source in found] == ["Gu et al. 2022, v2", "Ours"]
    rows = [{"model": "Mine", "source": "Ours", "listops": 37, "pathfinder128": FAILED}]
    rows[0] |= {"url": None, "remark": None, "text": None}
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert read_published(tmp_path / "rows.json") == {("Ours", "", ""): (mine,)}


def test_a_file_is_utf_8_and_quoted_cells_keep_their_line_breaks(tmp_path):
    text = 'model,source,remark,text\r\nS\u2028ö,Gu,"One\ntwo\x0cthree",70\r\n'
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "rows.csv").write_bytes(text.encode(encoding))
        ((source, (row,)),) = read_published(tmp_path / "rows.csv").items()
        assert (row["model"], source.remark) == ("S\u2028ö", "One\ntwo\x0cthree")


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("rows.csv", "model,source,listop\nA,B,3\n", "listops"),
        ("rows.csv", "model,source,listops\nA,B,370\n", "row 1: listops"),
        ("rows.csv", "model,listops\nA,3\n", "source"),
        ("rows.csv", "model,source,text\nA,B,1\nA,B,\n", "row 2"),
        ("rows.csv", "model,source,text\nA,B,1,2\n", "row 1"),
        ("rows.json", "[1]", "rows.json"),
        ("rows.json", "[", "rows.json"),
        ("rows.txt", "", ".csv or .json"),
        ("rows.csv", "model,source,text\nNystr\udcf6m,B,1\n", "rows.csv"),  # latin-1
    ],
)
def test_an_invalid_file_is_one_sentence(tmp_path, name, text, word):
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=word):
        read_published(tmp_path / name)
