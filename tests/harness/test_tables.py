"""Tables keep their columns, whatever a cell holds."""

import pytest

from harness.tables import Table, three_digits

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


def test_only_numbers_stand_to_the_right():
    assert TABLE.of_numbers == [False, False, True]
    assert Table(["steps"], []).of_numbers == [False]  # the first names its row


def test_a_number_has_three_digits_or_is_not_known():
    words = [three_digits(value) for value in (1234.5, 99.96, 0.012345, 0.0, None)]
    assert words == ["1,234", "100", "0.0123", "0.00", "–"]


def test_columns_can_be_taken_out():
    table = Table(["run", "a", "b"], [("", [["x", "1", "2"]]), ("Others", [["y", "3", "4"]])])
    taken = table.take("run", "b")
    assert taken == Table(("run", "b"), [("", [["x", "2"]]), ("Others", [["y", "4"]])])
    with pytest.raises(ValueError, match="'c' is not in list"):
        table.take("c")
