"""Tables as Markdown and LaTeX."""

import math

import numpy as np
import pandas as pd

from reporting.tables import (
    comparison,
    format_3sf,
    format_difference,
    format_p,
    in_sections,
    latex,
    lengths_cell,
    markdown,
)

ROWS = [
    {"name": "a", "accuracy": "37.15 ± 0.20 (n = 3)", "device": "2 × cpu", "p": "< 0.001"},
    {"name": "b", "accuracy": "not run", "device": "1 × cpu", "p": "–"},
]


def test_columns_of_numbers_are_right_aligned():
    assert markdown(ROWS).splitlines() == [
        "| name | accuracy | device | p |",
        "| --- | ---: | --- | ---: |",
        "| a | 37.15 ± 0.20 (n = 3) | 2 × cpu | &lt; 0.001 |",
        "| b | not run | 1 × cpu | – |",
    ]
    assert markdown(pd.DataFrame()) == ""


def test_missing_cells_are_empty_and_text_is_escaped():
    table = markdown([{"a": "x|y\nz"}, {"a": "<b>&", "c": math.nan}])
    assert "| x\\|y z |  |" in table
    assert "| &lt;b>&amp; |  |" in table


def test_titles_of_sections_are_bold_rows_also_in_latex():
    sections = {
        "This & that": pd.DataFrame(ROWS),
        "Others": pd.DataFrame([{"name": "x_1", "p": "5 %"}]),
        "None": pd.DataFrame(),
    }
    table = in_sections(sections)
    assert markdown(table).splitlines()[5:] == ["| **Others** |  |  |  |", "| x_1 |  |  | 5 % |"]
    lines = latex(table).splitlines()
    assert lines[0] == r"\begin{tabular}{lrlr}"
    assert lines[3:6] == [
        r"\midrule",
        r"\textbf{This \& that} &  &  &  \\",
        r"a & 37.15 $\pm$ 0.20 (n = 3) & 2 $\times$ cpu & < 0.001 \\",
    ]
    assert lines[7:10] == [r"\midrule", r"\textbf{Others} &  &  &  \\", r"x\_1 &  &  & 5 \% \\"]


def test_formats_of_numbers():
    found = [format_3sf(value) for value in (0.01234, 1.0, 99.94, 99.95, 1234.5, None, math.nan)]
    assert found == ["0.0123", "1.00", "99.9", "100", "1,234", "–", "–"]
    (cell,) = lengths_cell(np.arange(1, 202)).values()
    assert cell == "11, 101, 191, 201"  # 5 %, 50 %, 95 %, longest
    assert [format_p(value) for value in (0.0004, 0.25, math.nan)] == ["< 0.001", "0.250", "–"]
    assert format_difference(-1.234) == "−1.23"


def test_a_comparison_has_the_columns_that_we_have_and_published_rows_with_a_value_in_them():
    ours = {"ours": [{"model": "a", "Text": "60", "Image": "not run"}]}
    published = {"paper": [{"model": "b", "Text": "50"}, {"model": "c", "Image": "40"}]}
    table = comparison("model", ours, published, ["Text", "Image"], {"not run"})
    assert [*table.columns] == ["model", "Text"]
    assert [*table["model"]] == ["ours", "a", "paper", "b"]
