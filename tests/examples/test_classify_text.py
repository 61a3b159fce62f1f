import re

import numpy as np
import pytest

from tests.examples.scripts import load

pytest.importorskip("optax", reason="needs the extra `lra`")
script = load("classify_text")


@pytest.fixture
def folder(tmp_path):
    """Two classes, each with a word of its own once in a hundred; each text has a unique word."""
    rng = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        (tmp_path / label).mkdir()
        for i in range(8):
            words = [*rng.choice(["the", "of", "and", "a"], 85), *[label] * 15]
            text = " ".join([*rng.permutation(words), f"{label}{i}"])
            (tmp_path / label / f"{i}.txt").write_text(text)
    return tmp_path


@pytest.mark.slow(minutes=0.2)
def test_learns_classes_that_differ_in_one_word(folder, capsys):
    script.main([str(folder), "--length=53", "--epochs=6"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "cats, dogs: 24 pieces to train, 8 to validate"
    assert re.match(r"epoch 6: loss 0\.\d+, accuracy 100\.0%, \d+ s$", printed[-2])
    assert printed[-1] == "the constant answer: 50.0%"


def test_validation_uses_other_files_than_training(folder):
    (folder / ".cache").mkdir()  # not a class
    names, (inputs, labels), (valid_inputs, valid_labels) = script.read(folder, 101)
    assert names == ["cats", "dogs"]
    assert (np.bincount(labels).tolist(), np.bincount(valid_labels).tolist()) == ([6, 6], [2, 2])
    # The last word of a text is its own: known where it was trained on.
    assert (inputs[:, -1] != script.UNKNOWN).all()
    assert (valid_inputs[:, -1] == script.UNKNOWN).all()
    # Without a folder, it reads the files of Python.
    assert min(len(files) for files in script.find_files(None).values()) > script.HOLD_OUT


def test_pieces_contain_every_word_once_and_in_order():
    texts = [(list("abcde"), 0), (list("fg"), 1)]
    vocabulary = {letter: ord(letter) for letter in "abcdefg"}
    inputs, labels = script.cut(texts, vocabulary, 3)
    assert ["".join(map(chr, piece)).strip("\0") for piece in inputs] == ["abc", "de", "fg"]
    assert labels.tolist() == [0, 0, 1]


def test_rejects_a_folder_with_too_few_texts(folder):
    (folder / "birds").mkdir()
    (folder / "birds" / "0.txt").write_text("text")
    with pytest.raises(SystemExit, match="birds"):
        script.main([str(folder)])
