"""Tables keep their columns for any text in a cell."""

import pytest

from reporting.tables import Table, format_3sf, markdown_table

TABLE = Table(
    ["run|s", "task", "accuracy, %"],
    [("", [["a|b", "x < y & z", "1.00"]]), ("Ours | theirs", [["two\nlines", "", "–"]])],
)


def test_markdown_keeps_every_cell_in_its_column():
    assert TABLE.markdown().splitlines() == [
        "| run\\|s | task | accuracy, % |",
        "| --- | --- | ---: |",
        "| a\\|b | x &lt; y &amp; z | 1.00 |",
        "| **Ours \\| theirs** |  |  |",
        "| two lines |  | – |",
    ]


def test_latex_keeps_every_cell_in_its_column():
    table = Table(TABLE.columns, [*TABLE.sections, ("50 %", [["[a]_b", "✗", "−1 ± 2"]])])
    assert table.latex().splitlines() == [
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"run$|$s & task & accuracy, \% \\",
        r"\midrule",
        r"a$|$b & x $<$ y \& z & 1.00 \\",
        r"\midrule",
        r"\multicolumn{3}{l}{\textbf{Ours $|$ theirs}} \\",
        r"two lines &  & -- \\",
        r"\midrule",
        r"\multicolumn{3}{l}{\textbf{50 \%}} \\",
        r"{[}a]\_b & $\times$ & $-$1 $\pm$ 2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1.5", "not run", "does not fit"], True),
        (["−1,024 (n = 3)", "+3 %", "seed 4"], True),
        (["± 0.5", "–"], True),
        (["[1, 2]", "(1.5×)"], True),
        (["< 0.001", "1.2e-06"], True),
        (["", "✗", "words"], False),
        (["2 × cpu"], False),
        (["12 × cpu"], False),
        (["75eafe9439d8"], False),
        (["1.5", "seed 1", "seed 2"], False),
    ],
)
def test_only_numbers_are_right_aligned(cells, expected):
    table = Table(["steps", "value"], [("", [["1", cell] for cell in cells])])
    assert table.is_numeric == [False, expected]  # the first names its row


def test_a_table_without_rows():
    assert markdown_table(["run", "a"], []) == "| run | a |\n| --- | --- |\n"
    assert Table.from_rows({"": []}).markdown() == ""


def test_rows_need_a_cell_for_every_column():
    with pytest.raises(ValueError, match="argument"):
        markdown_table(["run", "a"], [["x"]])


def test_numbers_are_formatted_or_unknown():
    words = [format_3sf(value) for value in (1234.5, 99.96, 0.012345, 0.0, None)]
    assert words == ["1,234", "100", "0.0123", "0.00", "–"]


def test_removes_columns():
    table = Table(["run", "a", "b"], [("", [["x", "1", "2"]]), ("Others", [["y", "3", "4"]])])
    taken = table.select("run", "b")
    assert taken == Table(("run", "b"), [("", [["x", "2"]]), ("Others", [["y", "4"]])])
    with pytest.raises(ValueError, match="'c' is not in list"):
        table.select("c")
