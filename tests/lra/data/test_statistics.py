import dataclasses

import numpy as np
import pytest

from lra.data import statistics
from lra.data.task import Sequences, Split, Task


def split_of(contents, labels):
    return Split(Sequences.from_bytes(contents), np.array(labels, np.int32))


@pytest.fixture
def task(tmp_path):
    return Task(
        name="demo",
        splits={
            "train": split_of([b"abc", b"d", b"abc", b"efghi"], [0, 2, 0, 1]),
            "valid": split_of([b"d"], [1]),
            "test": split_of([b"efghi", b"xy", b"d"], [0, 0, 2]),
        },
        sha256="",
        decode=str,
        folder=tmp_path,
    )


def test_table_has_all_statistics(task):
    """Equal examples of two splits may have different labels."""
    table = statistics.markdown(task, num_classes=3)
    assert "| train | 4 | 3 | 50.0 25.0 25.0 | 1, 3, 5, 5 |" in table
    assert "1 of train in valid, 2 of train in test, 1 of valid in test." in table
    assert "| train | 2 | 2 | 50.0 0.0 50.0 | 1, 2, 3, 3 |" in statistics.markdown(task.first(2), 3)


def test_pairs_are_equal_in_either_order(task):
    texts = Sequences.from_bytes([b"abc", b"d", b"abc"])
    pairs = Split(
        texts, np.array([0, 1, 1], np.int32), np.array([[0, 1], [2, 1], [1, 0]], np.int32)
    )
    task = dataclasses.replace(task, splits={"train": pairs, "test": pairs})
    table = statistics.markdown(task, num_classes=2)
    assert "| train | 3 | 1 | 33.3 66.7 | 1, 2, 3, 3 |" in table
    assert "The pairs consist of 3 distinct texts." in table
