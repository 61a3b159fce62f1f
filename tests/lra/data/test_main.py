"""`python -m lra.data`."""

import pytest

from dataprep import cache
from lra.data import __main__ as command

EASY = ["pathfinder32-easy", "--examples=5", "--workers=1"]


def test_prepares_checks_and_describes_a_task(capsys):
    assert command.main(EASY) == 0
    printed = capsys.readouterr().out
    assert "all hashes verified" in printed
    assert "| train | 5 | 5 |" in printed
    assert "Training example 1, label " in printed


def test_shows_so_many_examples(capsys):
    assert command.main(["listops-short", "--examples=3", "--workers=1", "--show=1"]) == 0
    printed = capsys.readouterr().out
    assert "Training example 0, label " in printed
    assert "Training example 1" not in printed
    assert "\n[M" in printed or "\n[SM" in printed


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["listop"], "listops"),
        ([*EASY, "--data_dir=~no such user/x"], "this user does not exist"),
        (["text"], "--data_dir"),
        ([*EASY, "--data_dir=nowhere"], "Pathfinder needs"),
        (["listops", "--examples=-1"], "--examples"),
        (["listops", "--source=foo"], "--source"),
    ],
)
def test_invalid_arguments_print_one_sentence(arguments, word, capsys, monkeypatch):
    monkeypatch.setattr(cache, "_build", lambda *_: pytest.fail("prepared"))
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.splitlines()[-1].startswith("lra.data: ")
