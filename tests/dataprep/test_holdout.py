import itertools

import numpy as np
import pytest

from dataprep.holdout import held_out, held_out_share

CONTENTS = [b"example %d" % i for i in range(59)]
LABELS = np.arange(59) % 3


def chosen(contents, labels, per_class=7, seed=0):
    return set(itertools.compress(contents, held_out(contents, np.array(labels), per_class, seed)))


def test_examples_depend_on_the_seed_and_not_on_order_and_a_larger_number_adds_some():
    order = np.random.default_rng(0).permutation(59)
    some = chosen(CONTENTS, LABELS)
    assert chosen([CONTENTS[i] for i in order], LABELS[order]) == some
    assert chosen(CONTENTS, LABELS, seed=1) != some
    assert chosen(CONTENTS, LABELS, 5) < some


def test_held_out_examples_never_change():
    """Golden: held out examples are part of the data of the stored results."""
    mask = held_out(CONTENTS, LABELS, 2, 0)
    assert np.flatnonzero(mask).tolist() == [1, 10, 15, 20, 32, 51]


@pytest.mark.parametrize("label", [0, 1])
def test_equal_examples_are_in_the_same_split(label):
    """Half of class 0 has a copy, in the same or in another class, for any order at the boundary."""
    contents = CONTENTS + CONTENTS[::6]
    labels = np.append(LABELS, np.full(len(CONTENTS[::6]), label))
    for per_class in range(1, 16):
        mask = held_out(contents, labels, per_class, 0)
        assert np.bincount(labels[mask]).tolist() == [per_class] * 3
        out, kept = (set(itertools.compress(contents, side)) for side in (mask, ~mask))
        assert out.isdisjoint(kept)


@pytest.mark.parametrize(
    ("contents", "labels", "per_class", "word"),
    [
        (CONTENTS, LABELS, 20, "class 2 has 19, of which 19"),
        ([b"same"] * 4, np.zeros(4, int), 3, "of which 0"),  # copies stay together
    ],
)
def test_rejects_a_class_with_too_few_examples(contents, labels, per_class, word):
    with pytest.raises(ValueError, match=word):
        held_out(contents, labels, per_class, 0)


def test_a_share_keeps_equal_examples_together_and_does_not_depend_on_the_order():
    contents = [b"%d" % (i % 40) for i in range(60)]
    mask = held_out_share(contents, 0.2, seed=3)
    assert 8 <= mask.sum() <= 12
    selected = set(itertools.compress(contents, mask))
    assert [content in selected for content in contents] == mask.tolist()
    assert (held_out_share(contents[::-1], 0.2, seed=3)[::-1] == mask).all()
    assert (held_out_share(contents, 0.2, seed=4) != mask).any()
    for share in (1e-9, 1 - 1e-9):
        assert 0 < held_out_share(contents, share, seed=0).sum() < 60


@pytest.mark.parametrize("copies", [150, 500])
def test_a_frequent_content_does_not_shrink_the_held_out_share(copies):
    contents = [b"frequent"] * copies + [b"%d" % i for i in range(1000 - copies)]
    for seed in range(30):
        mask = held_out_share(contents, 0.1, seed)
        assert mask.sum() == 100
        assert not mask[0]


def test_the_rarest_content_is_held_out_if_none_fits():
    mask = held_out_share([b"a"] * 5 + [b"b"] * 2 + [b"c"] * 3, 0.1, seed=0)
    assert mask.nonzero()[0].tolist() == [5, 6]
