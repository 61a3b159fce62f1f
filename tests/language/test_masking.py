"""Masks and order of pairs: properties of one draw, and shares over many draws."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language.config import ObjectiveConfig
from language.masking import Vocabulary, mask_pairs

PAD, CLS, SEP, MASK, SIZE = 0, 1, 2, 3, 101
SPECIAL = (PAD, CLS, SEP, MASK)
LENGTH, ROWS = 61, 37


@pytest.fixture(scope="module")
def vocabulary():
    """Every third token continues the word before it."""
    starts = np.arange(SIZE) % 3 != 1
    starts[list(SPECIAL)] = True
    return Vocabulary(mask_id=MASK, special_ids=SPECIAL, word_starts=starts)


@pytest.fixture(scope="module")
def batch():
    """Pairs of all lengths that fit: [CLS] A [SEP] B [SEP] padding."""
    numbers = np.random.default_rng(5)
    inputs = np.full((ROWS, LENGTH), PAD, np.int32)
    first = numbers.integers(1, LENGTH - 4, ROWS).astype(np.int32)
    second = np.array([numbers.integers(1, LENGTH - 2 - n) for n in first], np.int32)
    for row, a, b in zip(inputs, first, second, strict=True):
        words = numbers.integers(4, SIZE, a + b)
        row[: a + b + 3] = [CLS, *words[:a], SEP, *words[a:], SEP]
    return {
        "inputs": jnp.asarray(inputs),
        "first_len": jnp.asarray(first),
        "second_len": jnp.asarray(second),
        "example": jnp.arange(ROWS),
    }


@pytest.fixture(scope="module")
def draw(batch, vocabulary):
    @functools.cache
    def compiled(first, last, **options):
        part = {name: values[first:last] for name, values in batch.items()}
        config = ObjectiveConfig(**options)
        return jax.jit(functools.partial(mask_pairs, **part, vocabulary=vocabulary, config=config))

    def draw(seed=0, first=0, last=ROWS, **options):
        pairs = compiled(first, last, **options)(jax.random.key(seed))
        return types.SimpleNamespace(**{name: np.asarray(x) for name, x in vars(pairs).items()})

    return draw


def sentences(tokens, mask):
    """The two token lists between the special ones."""
    real = tokens[mask].tolist()
    assert real[0] == CLS
    assert real[-1] == SEP
    middle = real.index(SEP)
    return real[1:middle], real[middle + 1 : -1]


def restored(pairs):
    """The inputs with the original tokens restored."""
    inputs = pairs.inputs.copy()
    np.put_along_axis(inputs, pairs.positions, pairs.targets, axis=1)
    return inputs


def test_half_of_the_pairs_are_swapped_and_no_token_is_lost(batch, draw):
    inputs = np.asarray(batch["inputs"])
    lengths = np.asarray(batch["first_len"] + batch["second_len"] + 3)
    orders, places = [], np.arange(LENGTH)
    for seed in range(11):
        pairs = draw(seed)
        orders.append(pairs.order)
        for row, tokens in enumerate(restored(pairs)):
            real = places < lengths[row]
            first, second = sentences(inputs[row], real)
            expected = (second, first) if pairs.order[row] == 1 else (first, second)
            assert sentences(tokens, pairs.mask[row]) == expected
            assert (pairs.types[row] == (real & (places >= len(expected[0]) + 2))).all()
            assert (tokens[~pairs.mask[row]] == PAD).all()
    share = np.mean(orders)
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(11 * ROWS)


def test_without_an_order_loss_nothing_is_swapped(batch, draw):
    pairs = draw(order_weight=0.0)
    assert not pairs.order.any()
    assert (restored(pairs) == np.asarray(batch["inputs"])).all()


def test_only_ordinary_tokens_are_predicted_once_each(draw):
    """Unused positions keep their tokens."""
    pairs = draw()
    used, positions, targets = pairs.weights > 0, pairs.positions, pairs.targets
    for row in range(ROWS):
        assert len({*positions[row]}) == len(positions[row])
        assert not {*targets[row][used[row]].tolist()} & set(SPECIAL)
        assert pairs.mask[row][positions[row][used[row]]].all()
    there = np.take_along_axis(pairs.inputs, positions, axis=1)
    assert not used.all()
    assert (there == targets)[~used].all()


def test_words_are_predicted_whole(draw, vocabulary):
    pairs, pieces = draw(), 0
    for tokens, positions, weights in zip(
        restored(pairs), pairs.positions, pairs.weights, strict=True
    ):
        chosen = set(positions[weights > 0].tolist())
        for place in range(1, LENGTH):
            goes_on = not vocabulary.word_starts[tokens[place]] and tokens[place] not in SPECIAL
            if goes_on and tokens[place - 1] not in SPECIAL:
                assert (place in chosen) == (place - 1 in chosen)
                pieces += place in chosen
    assert pieces > ROWS / 2


@pytest.mark.parametrize("whole_words", [True, False])
def test_predicts_the_configured_share(batch, draw, whole_words):
    """Exactly with single tokens; with whole words at most that, on average one word less."""
    lengths = np.asarray(batch["first_len"] + batch["second_len"] + 3)
    wanted = np.maximum(1, np.round(0.15 * lengths))
    drawn = [draw(seed, whole_words=whole_words).weights.sum(-1) for seed in range(13)]
    predicted = np.mean(drawn, axis=0)
    if whole_words:
        assert (predicted <= wanted).all()
        assert (wanted - predicted).mean() < 1
    else:
        assert (predicted == np.minimum(wanted, lengths - 3)).all()


def test_every_word_is_predicted_equally_often(draw):
    """Over many draws of one row, the counts of its positions are binomial."""
    counts = np.zeros(LENGTH)
    single = [draw(seed, first=3, last=4, whole_words=False) for seed in range(400)]
    # Swapping moves places: tokens are counted by their place in the unswapped row.
    unswapped = [pairs for pairs in single if pairs.order[0] == 0]
    for pairs in unswapped:
        counts[pairs.positions[0][pairs.weights[0] > 0]] += 1
    number = single[0].mask[0].sum()
    rate = single[0].weights[0].sum() / (number - 3)
    ordinary = counts[counts > 0]
    assert len(ordinary) == number - 3
    sd = np.sqrt(len(unswapped) * rate * (1 - rate))
    assert np.abs(ordinary - len(unswapped) * rate).max() < 5 * sd


def test_predicted_tokens_are_masked_replaced_or_unchanged(draw):
    kept = masked = total = 0
    for seed in range(60):
        pairs = draw(seed)
        counted = pairs.weights > 0
        there = np.take_along_axis(pairs.inputs, pairs.positions, axis=1)[counted]
        targets = pairs.targets[counted]
        assert not (set(there.tolist()) & {PAD, CLS, SEP})
        total += len(there)
        masked += (there == MASK).sum()
        kept += (there == targets).sum()
    for share, expected in ((masked / total, 0.8), (kept / total, 0.1 + 0.1 / (SIZE - 4))):
        assert abs(share - expected) < 5 * np.sqrt(expected * (1 - expected) / total)


def test_row_depends_only_on_its_index_and_the_rng(draw):
    whole, part = draw(7), draw(7, first=5, last=11)
    for name, values in vars(part).items():
        assert (vars(whole)[name][5:11] == values).all()
    assert (draw(8).inputs != whole.inputs).any()


@pytest.mark.parametrize(("pieces", "expected"), [(10, {0, 1}), (11, {2})])
def test_only_words_of_more_than_ten_pieces_are_cut(vocabulary, pieces, expected):
    """The share allows two tokens: none of a word of ten pieces, and two of a word of eleven."""
    # 4 continues the word before it.
    inputs = jnp.array([[CLS, 5, *[4] * (pieces - 1), SEP, 8, SEP]])
    numbers = [jnp.array([number]) for number in (pieces, 1, 0)]
    options = {"vocabulary": vocabulary, "config": ObjectiveConfig()}
    draw = jax.jit(lambda rng: mask_pairs(rng, inputs, *numbers, **options))
    drawn = [draw(jax.random.key(seed)) for seed in range(7)]
    targets = [np.asarray(x.targets)[np.asarray(x.weights) > 0].tolist() for x in drawn]
    assert {len(row) for row in targets} == expected
    if pieces == 10:
        assert all(row in ([], [8]) for row in targets)


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"mask_rate": 0.0}, "mask_rate"),
        ({"mask_share": 0.8, "random_share": 0.3}, "random_share"),
        ({"random_share": -0.1}, "random_share"),
        ({"order_weight": -1.0}, "order_weight"),
    ],
)
def test_rejects_invalid_objectives(options, key):
    with pytest.raises(ValueError, match=rf"objective\.{key}"):
        ObjectiveConfig(**options)
    assert ObjectiveConfig(mask_share=1.0, random_share=0.0, order_weight=0.0)
