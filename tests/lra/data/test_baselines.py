import numpy as np
import pytest

from lra.data import PairSplit, Sequences, Split, Task
from lra.data.baselines import baselines


def task(tmp_path, train, test):
    return Task("made", {"train": train, "test": test}, "", str, tmp_path)


def split(*examples):
    texts, labels = zip(*examples, strict=True)
    return Split(Sequences.of(texts), np.array(labels, np.int32))


def test_the_most_frequent_label_and_the_first_token(tmp_path):
    train = split((b"ab", 2), (b"ac", 2), (b"b", 1), (b"bb", 1), (b"ba", 2), (b"c", 0))
    test = split((b"az", 2), (b"bz", 1), (b"c", 0), (b"unseen", 2), (b"b", 2))
    found = baselines(task(tmp_path, train, test))
    assert found["constant answer"] == pytest.approx(3 / 5)  # 2 is the most frequent
    assert found["first token alone"] == pytest.approx(4 / 5)  # the last is wrong: b is mostly 1


def test_an_empty_sequence_is_of_a_kind_of_its_own(tmp_path):
    train = split((b"", 1), (b"", 1), (b"a", 0), (b"a", 0), (b"a", 0))
    found = baselines(task(tmp_path, train, split((b"", 1), (b"a", 0))))
    assert found == {"constant answer": 0.5, "first token alone": 1.0}


def test_only_the_examples_of_a_shortened_split_count(tmp_path):
    train = split((b"a", 0), (b"a", 1), (b"a", 1))
    found = baselines(task(tmp_path, train.first(1), split((b"a", 0), (b"a", 1)).first(1)))
    assert found == {"constant answer": 1.0, "first token alone": 1.0}


def test_pairs_have_the_constant_answer_alone(tmp_path):
    pairs = PairSplit(
        Sequences.of([b"a", b"b"]), np.array([[0, 1], [1, 0]], np.int32), np.array([1, 1], np.int32)
    )
    assert baselines(task(tmp_path, pairs, pairs)) == {"constant answer": 1.0}
