"""Tables keep their columns for any text in a cell."""

import pytest

from reporting.tables import Table, format_3sf

TABLE = Table(
    ["run", "task", "accuracy, %"],
    [("", [["a|b", "x < y & z", "1.00"]]), ("Ours | theirs", [["two\nlines", "", "–"]])],
)


def test_markdown_keeps_every_cell_in_its_column():
    assert TABLE.markdown().splitlines() == [
        "| run | task | accuracy, % |",
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
        r"run & task & accuracy, \% \\",
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


def test_only_numbers_are_right_aligned():
    assert TABLE.is_numeric == [False, False, True]
    assert Table(["steps"], []).is_numeric == [False]  # the first names its row


def test_numbers_are_formatted_or_unknown():
    words = [format_3sf(value) for value in (1234.5, 99.96, 0.012345, 0.0, None)]
    assert words == ["1,234", "100", "0.0123", "0.00", "–"]


def test_removes_columns():
    table = Table(["run", "a", "b"], [("", [["x", "1", "2"]]), ("Others", [["y", "3", "4"]])])
    taken = table.select("run", "b")
    assert taken == Table(("run", "b"), [("", [["x", "2"]]), ("Others", [["y", "4"]])])
    with pytest.raises(ValueError, match="'c' is not in list"):
        table.select("c")
