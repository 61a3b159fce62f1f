import collections

import numpy as np
import pytest

from lra.data import Sequences, Split, Task
from lra.data import baselines as baselines_module
from lra.data.baselines import baselines
from lra.data.listops import encode


def task(tmp_path, train, test, name="made"):
    return Task(name, {"train": train, "test": test}, "", str, tmp_path)


def split(*examples):
    texts, labels = zip(*examples, strict=True)
    return Split(Sequences.from_bytes(texts), np.array(labels, np.int32))


def test_scores_the_most_frequent_label_and_the_first_token(tmp_path):
    train = split((b"ab", 2), (b"ac", 2), (b"b", 1), (b"bb", 1), (b"ba", 2), (b"c", 0))
    test = split((b"az", 2), (b"bz", 1), (b"c", 0), (b"unseen", 2), (b"b", 2))
    found = baselines(task(tmp_path, train, test))
    assert found["constant answer"] == pytest.approx(3 / 5)  # 2 is the most frequent
    assert found["first token alone"] == pytest.approx(4 / 5)  # the last is wrong: b is mostly 1


@pytest.mark.parametrize(
    ("train", "test", "constant", "first"),
    [  # empty sequences are a separate case, and a shortened split counts only its own examples
        ([(b"", 1), (b"", 1), *[(b"a", 0)] * 3], [(b"", 1), (b"a", 0)], 0.5, 1.0),
        ([(b"a", 0), (b"a", 1), (b"a", 1)], [(b"a", 0), (b"a", 1)], 1.0, 1.0),
    ],
)
def test_empty_sequences_and_shortened_splits(tmp_path, train, test, constant, first):
    train, test = split(*train), split(*test)
    if constant == 1:
        train, test = train.first(1), test.first(1)
    found = baselines(task(tmp_path, train, test))
    assert found == {"constant answer": constant, "first token alone": first}


def test_naive_bayes_counts_the_substrings_of_each_label(tmp_path):
    """Its answers are those of a dictionary of counts."""
    rng = np.random.default_rng(0)
    length = baselines_module.NGRAM

    def random_split(count):
        sizes = rng.integers(0, 40, count)
        texts = [rng.choice([97, 98], size).astype(np.uint8).tobytes() for size in sizes]
        return split(*zip(texts, rng.integers(3, size=count).tolist(), strict=True))

    def substrings(text):
        return [text[i : i + length] for i in range(len(text) - length + 1)]

    train, test = random_split(300), random_split(200)
    read = lambda split, i: bytes(split.sequences[i].astype(np.uint8))
    counts = [collections.Counter() for _ in range(3)]
    for i, label in enumerate(train.labels.tolist()):
        counts[label].update(substrings(read(train, i)))
    totals = [2**baselines_module.LOG2_BUCKETS + sum(found.values()) for found in counts]
    answers = []
    for i in range(len(test)):
        scores = np.log(np.bincount(train.labels))
        for label in range(3):
            for text in substrings(read(test, i)):
                scores[label] += np.log((counts[label][text] + 1) / totals[label])
        answers.append(scores.argmax())
    found = baselines(task(tmp_path, train, test, name="text"))
    assert found[f"naive Bayes on {length} bytes"] == np.mean(test.labels == answers)
    own = baselines(task(tmp_path, train, train, name="text"))
    assert own[f"naive Bayes on {length} bytes"] > 0.6


def test_naive_bayes_reads_the_benchmarks_part_of_a_text(tmp_path):
    end, rest = b"0123456789", b"x" * (baselines_module.READ_BYTES - 10)
    train = split((end, 1), (b"y" * 10, 0))
    test = split((rest + end, 1), (b"x" + rest + end, 1), (b"12345", 1))
    found = baselines(task(tmp_path, train, test, name="text"))
    assert found[f"naive Bayes on {baselines_module.NGRAM} bytes"] == pytest.approx(1 / 3)


def test_pairs_have_only_the_constant_answer(tmp_path):
    pairs = Split(
        Sequences.from_bytes([b"a", b"b"]),
        np.array([1, 1], np.int32),
        np.array([[0, 1], [1, 0]], np.int32),
    )
    assert baselines(task(tmp_path, pairs, pairs)) == {"constant answer": 1.0}


def trees(count, seed, tree):
    """A split of `count` trees; `tree` returns a random tree and its label."""
    rng = np.random.default_rng(seed)
    made = [tree(rng) for _ in range(count)]
    return split(*((encode(expression).tobytes(), label) for expression, label in made))


def digits(rng, count):
    return " ".join(map(str, rng.integers(10, size=count)))


def root_and_end(rng):
    root, last = rng.choice(["MAX", "MIN"]), int(rng.integers(10))
    return f"[{root} {digits(rng, 30)} {last} ]", last if root == "MAX" else 9 - last


def depth_of_the_end(rng):
    last, nested = int(rng.integers(10)), rng.random() < 0.5
    end = f"[SM {last} ] ]" if nested else f"[SM ] {last} ]"
    return f"[MAX {digits(rng, 30)} {end}", 9 - last if nested else last


@pytest.mark.parametrize(
    ("tree", "wrong", "right"),  # the label depends on `tree` alone
    [
        (root_and_end, "first token alone", "first and last 2 tokens"),
        (depth_of_the_end, "first and last 2 tokens", "first and last 4 tokens"),
    ],
)
def test_baselines_read_the_ends_of_a_tree_and_the_root_operator(tmp_path, tree, wrong, right):
    train, test = trees(3000, 0, tree), trees(300, 1, tree)
    found = baselines(task(tmp_path, train, test, name="listops-made"))
    assert len(found) == 5
    assert found[wrong] < (0.7 if tree is depth_of_the_end else 0.3)
    assert found[right] == 1.0
