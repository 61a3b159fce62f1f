import itertools

import numpy as np
import pytest

from dataprep.holdout import held_out, held_out_share

CONTENTS = [b"example %d" % i for i in range(59)]
LABELS = np.arange(59) % 3


def chosen(contents, labels, per_class=7, seed=0):
    return set(itertools.compress(contents, held_out(contents, np.array(labels), per_class, seed)))


def test_holds_out_the_same_number_per_class():
    mask = held_out(CONTENTS, LABELS, 7, 0)
    assert mask.dtype == bool
    assert np.bincount(LABELS[mask]).tolist() == [7, 7, 7]


def test_order_does_not_matter():
    order = np.random.default_rng(0).permutation(59)
    assert chosen([CONTENTS[i] for i in order], LABELS[order]) == chosen(CONTENTS, LABELS)


def test_held_out_examples_never_change():
    """Golden: held out examples are part of the data of the stored results."""
    mask = held_out(CONTENTS, LABELS, 2, 0)
    assert np.flatnonzero(mask).tolist() == [1, 10, 15, 20, 32, 51]


def test_another_seed_holds_out_other_examples():
    assert chosen(CONTENTS, LABELS, seed=1) != chosen(CONTENTS, LABELS)


def test_a_larger_number_adds_to_the_held_out_examples():
    assert chosen(CONTENTS, LABELS, 5) < chosen(CONTENTS, LABELS, 7)


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


def test_rejects_a_class_with_too_few_examples():
    with pytest.raises(
        ValueError, match=r"20 examples of each class .* class 2 has 19, of which 19 can"
    ):
        held_out(CONTENTS, LABELS, 20, 0)


def test_rejects_copies_that_cannot_be_separated():
    with pytest.raises(
        ValueError, match=r"class 0 has 4, of which 0 can be held out \(duplicates stay"
    ):
        held_out([b"same"] * 4, np.zeros(4, int), 3, 0)


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
