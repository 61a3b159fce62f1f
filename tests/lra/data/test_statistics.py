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


def test_statistics_of_a_split(task):
    found = statistics.split_statistics(task.splits["train"], num_classes=3)
    assert (found.examples, len(found.contents)) == (4, 3)
    assert found.label_counts.tolist() == [2, 1, 1]
    assert found.lengths.tolist() == [3, 1, 3, 5]


def test_a_shortened_split_counts_only_its_own_examples(task):
    found = statistics.split_statistics(task.splits["train"].first(2), num_classes=3)
    assert (found.examples, len(found.contents), found.lengths.tolist()) == (2, 2, [3, 1])


def test_finds_equal_examples_of_two_splits_with_any_labels(task):
    found = {name: statistics.split_statistics(split, 3) for name, split in task.splits.items()}
    assert statistics.shared_examples(found) == {
        ("train", "valid"): 1,
        ("train", "test"): 2,
        ("valid", "test"): 1,
    }


def test_pairs_are_equal_in_either_order(task):
    texts = Sequences.from_bytes([b"abc", b"d", b"abc"])
    pairs = Split(
        texts, np.array([0, 1, 1], np.int32), np.array([[0, 1], [2, 1], [1, 0]], np.int32)
    )
    found = statistics.split_statistics(pairs, num_classes=2)
    assert (found.examples, len(found.contents)) == (3, 1)
    assert found.lengths.tolist() == [3, 1, 3, 1, 1, 3]


def test_table_has_all_statistics(task):
    table = statistics.markdown(task, num_classes=3)
    assert "| train | 4 | 3 | 50.0 25.0 25.0 | 1, 3, 5, 5 |" in table
    assert "1 of train in valid, 2 of train in test, 1 of valid in test." in table
