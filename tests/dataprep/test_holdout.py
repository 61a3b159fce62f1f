import numpy as np
import pytest

from dataprep.holdout import held_out

CONTENTS = [b"example %d" % i for i in range(59)]
LABELS = np.arange(59) % 3


def chosen(contents, labels, per_class=7, seed=0):
    mask = held_out(contents, np.array(labels), per_class, seed)
    return {content for content, out in zip(contents, mask, strict=True) if out}


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
        sides = [
            {content for content, out in zip(contents, mask, strict=True) if out == side}
            for side in (True, False)
        ]
        assert sides[0].isdisjoint(sides[1])


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
