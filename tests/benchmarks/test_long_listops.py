"""Length and value of long trees, and invalid arguments."""

import sys

import jax
import numpy as np
import pytest

from benchmarks import long_listops
from lra.data import listops


@pytest.mark.parametrize("length", [2000, 5003])
def test_trees_fill_the_length_and_have_their_values(length):
    tokens, value = long_listops.long_tree(length, seed=0)
    assert length / 2 < len(tokens) <= length
    assert listops.evaluate(listops.decode(np.asarray(tokens, np.uint8))) == value


def exit_code(main):
    """What `main` returns, or what argparse exits with."""
    try:
        return main()
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--length=1000", "--devices=3"], "--length=1000 is too short"),
        (["--length=100"], "which have up to 2000 tokens"),
        (["--devices=0"], "--devices=0 and --steps=2 must be 1 or more"),
        (["--steps=0"], "must be 1 or more"),
        (["--length=2048", "--devices=3"], "is not divisible by mesh.sequence=3"),
    ],
)
def test_invalid_arguments_print_one_line(monkeypatch, capsys, arguments, words):
    jax.devices()  # these stay: `main` asks for another number of them
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(sys, "argv", ["long_listops", *arguments])
    assert exit_code(long_listops.main) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
