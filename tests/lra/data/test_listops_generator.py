"""The generator of ListOps: its trees have the official distribution and do not repeat."""

import itertools
import math
import random
import statistics

import numpy as np
import pytest

from lra.data import listops


def num_levels(tokens):
    """Number of levels of a tree; the digits of the deepest list are one level below it."""
    steps = [(11 <= token <= 14) - (token == listops.VOCAB["]"]) for token in tokens]
    return max(itertools.accumulate(steps)) + 1


def generate(num_trees, num_processes=1, seed=7, min_length=500, max_length=2000):
    lengths = {"min_length": min_length, "max_length": max_length}
    return listops.generate(num_trees, seed=seed, num_processes=num_processes, **lengths)


def test_labels_are_the_values_of_their_trees():
    for tree in listops.generate_chunk(7, 0, 500, 2000).trees:
        tokens = np.frombuffer(tree.tokens, np.uint8)
        assert listops.evaluate(listops.decode(tokens)) == tree.label


@pytest.mark.parametrize(
    "count", [1_000, pytest.param(20_000, marks=pytest.mark.slow(minutes=0.5))]
)
def test_trees_have_the_distribution_of_the_official_algorithm(count):
    """Compares lengths, values and tries with those of a copy of the official recursion."""
    rng = random.Random(11)

    def draw(depth):
        if depth == 10 or rng.random() > 0.25:
            return rng.randint(0, 9), 1
        children = [draw(depth + 1) for _ in range(rng.randint(2, 10))]
        function = rng.choice(
            [min, max, lambda v: int(statistics.median(v)), lambda v: sum(v) % 10]
        )
        return function([value for value, _ in children]), 2 + sum(size for _, size in children)

    official, official_tries = [], 0
    while len(official) < count:
        tree = draw(1)
        official_tries += 1
        if 500 < tree[1] < 2000:
            official.append(tree)
    chunks = [listops.generate_chunk(7, i, 500, 2000) for i in range(count // listops.CHUNK_TREES)]
    trees = [tree for chunk in chunks for tree in chunk.trees]
    assert {num_levels(tree.tokens) for tree in trees[:250]} == {10}
    values, lengths = np.array([(tree.label, len(tree.tokens)) for tree in trees]).T
    official_values, official_lengths = np.array(official).T

    pairs = np.stack([np.bincount(v, minlength=10) for v in (values, official_values)])
    chi_square = ((pairs[0] - pairs[1]) ** 2 / pairs.sum(axis=0)).sum()
    assert chi_square < 27.9  # one in a thousand at 9 degrees of freedom
    assert lengths.min() > 500
    assert lengths.max() < 2000
    shares = [
        np.searchsorted(np.sort(sizes), np.arange(500, 2001)) / count
        for sizes in (lengths, official_lengths)
    ]
    # Kolmogorov-Smirnov, one in a thousand.
    assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(2 / count)
    tries = sum(chunk.num_tries for chunk in chunks)  # about 12 per tree, geometrically distributed
    assert abs(tries - official_tries) < 4 * 12 * math.sqrt(2 * count)


def test_trees_are_unique():
    drawn = [tree for i in range(8) for tree in listops.generate_chunk(7, i, 3, 6).trees]
    assert len(set(drawn)) < len(drawn)  # so there is something to remove
    trees = list(generate(1_000, min_length=3, max_length=6))
    assert len(set(trees)) == 1_000
    assert trees == list(dict.fromkeys(drawn))[:1_000]  # the first one counts


def test_rejects_lengths_with_too_few_trees(monkeypatch):
    """All trees of one token are the ten digits, and no tree has two or three."""
    trees = list(generate(10, min_length=0, max_length=3))
    assert sorted(tree.label for tree in trees) == list(range(10))
    with pytest.raises(ValueError, match="only 10 distinct trees"):
        list(generate(11, min_length=0, max_length=3))
    monkeypatch.setattr(listops, "MAX_TRIES_PER_TREE", 1_000)
    with pytest.raises(ValueError, match="1 < length < 4"):
        listops.generate_chunk(7, 0, 1, 4)
