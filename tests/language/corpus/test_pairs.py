import itertools
import random
import types

import numpy as np
import pytest

from language.corpus.pairs import NUM_SPECIAL, Pairs, draw_split, pack

CLS, SEP, PAD, VOCAB = 1, 2, 3, 211
TOKENIZER = types.SimpleNamespace(cls_id=CLS, sep_id=SEP, pad_id=PAD, vocab_size=VOCAB)


def sentences(lengths):
    """Sentences of the given lengths; all tokens of a document are different."""
    numbers = itertools.count()
    return [list(itertools.islice(numbers, length)) for length in lengths]


def packed(lengths, max_tokens, short_rate=0.0, seed=0):
    return list(pack(sentences(lengths), max_tokens, short_rate, random.Random(seed)))


def lengths_of(pairs):
    return [(len(pair.first), len(pair.second)) for pair in pairs]


def stored(texts):
    """Pairs of what `lengths_of` gives, as they are opened from a folder; tokens are 10, 11, …"""
    both = np.array([a + b for a, b in texts], np.int64)
    offsets = np.concatenate([[0], np.cumsum(both)])
    tokens = (10 + np.arange(both.sum()) % (VOCAB - 10)).astype(np.uint16)
    return Pairs(tokens, offsets, np.array([a for a, _ in texts], np.int32), TOKENIZER)


# --- Packing


def test_every_token_is_in_one_pair_in_order_and_no_text_is_empty():
    for seed in range(300):
        rng = random.Random(seed)
        max_tokens = rng.choice([2, 3, 5, 11, 61])
        lengths = [rng.choice([1, 2, 3, 7, 13, max_tokens, 131]) for _ in range(rng.randint(2, 19))]
        pairs = packed(lengths, max_tokens, short_rate=rng.choice([0, 0.1, 1]), seed=seed)
        assert all(min(pair) > 0 and sum(pair) <= max_tokens for pair in lengths_of(pairs)), seed
        kept = [token for pair in pairs for part in pair for token in part]
        # Only a last token that finds no place is left out.
        assert kept in (list(range(sum(lengths))), list(range(sum(lengths) - 1))), seed
        if len(kept) < sum(lengths):
            assert sum(lengths_of(pairs)[-1]) == max_tokens, seed


def test_sentences_that_fit_are_whole():
    for seed in range(20):
        lengths = random.Random(seed).choices([2, 3, 5], k=37)
        borders = {0, *itertools.accumulate(lengths)}
        pairs = packed(lengths, 31, seed=seed)
        assert {text[0] for pair in pairs for text in pair} <= borders
        # Closed where the next sentence does not fit, and the last one as it comes.
        assert all(sum(pair) > 31 - 5 for pair in lengths_of(pairs)[:-2])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([500], []),  # a single sentence gives no pair
        ([4, 6], [(4, 6)]),  # fits to the token
        ([4, 7], [(4, 3), (3, 1)]),  # the second is cut, and the rest takes half of it
        ([4, 8], [(4, 3), (3, 2)]),
        ([4, 13], [(4, 6), (3, 4)]),  # the rest is the longer one, and is cut itself
        ([10, 3], [(5, 2), (3, 3)]),  # a first that would fill the pair is cut in the middle
        ([9, 3], [(9, 1), (1, 1)]),
        ([9, 2], [(9, 1)]),  # one token finds no place
        ([27, 1], [(5, 5), (5, 5), (7, 1)]),
        ([4, 4, 4], [(4, 4), (2, 2)]),
        ([3, 3, 4, 6], [(3, 3), (4, 6)]),  # the last takes its neighbor, to the token
    ],
)
def test_long_sentences_are_cut_where_there_is_room(lengths, expected):
    assert lengths_of(packed(lengths, 10)) == expected


def test_last_sentence_takes_its_neighbor_or_joins_a_short_pair():
    """A pair with a small target ends early, so it has room for the last sentence."""
    for seed in range(50):
        full, last = lengths_of(packed([3, 3, 3, 5], 10, seed=seed))
        assert (sum(full), last) == (6, (3, 5))
        for lengths in ([2, 2, 2], [3, 3, 4]):
            [pair] = lengths_of(packed(lengths, 10, 1.0, seed))
            assert sum(pair) == sum(lengths)


def test_pairs_are_divided_between_any_two_sentences():
    borders = {lengths_of(packed([1, 1, 1, 1, 1], 5, seed=seed))[0] for seed in range(200)}
    assert borders == {(1, 4), (2, 3), (3, 2), (4, 1)}


@pytest.mark.parametrize("short_rate", [0, 0.1, 0.5, 1])
def test_share_of_short_pairs_is_short_rate(short_rate):
    """All sentences have one token, so every pair has its target length: 2 to 40, or 40."""
    totals = np.array([sum(pair) for pair in lengths_of(packed([1] * 100_000, 40, short_rate))])
    share = (totals < 40).mean()
    assert abs(share - short_rate * 38 / 39) < 0.02
    short = totals[totals < 40]
    if short_rate:
        assert set(short) == set(range(2, 40))
        assert abs(short.mean() - 20.5) < 1.5


# --- What is drawn


def test_split_depends_only_on_text_and_seed():
    (split, rng), (same_split, same_rng) = (draw_split("A text.", 3, 0.5) for _ in range(2))
    assert split == same_split
    numbers = [rng.random() for _ in range(3)]
    assert numbers == [same_rng.random() for _ in range(3)]
    for text, seed in (("A text.", 4), ("Another.", 3)):
        assert draw_split(text, seed, 0.5)[1].random() != numbers[0]


@pytest.mark.parametrize("held_out", [0.01, 0.3, 0.99])
def test_held_out_share_is_as_configured_and_nested(held_out):
    texts = [f"Document {i}." for i in range(10_000)]
    valid = [draw_split(text, 0, held_out)[0] == "valid" for text in texts]
    assert abs(np.mean(valid) - held_out) < 0.02
    more = [draw_split(text, 0, held_out + 0.005)[0] == "valid" for text in texts]
    assert all(np.array(valid) <= np.array(more))


# --- Batches


def row_by_row(pairs, indices, max_len):
    rows = []
    for index in indices:
        first, second = pairs[index]
        row = [CLS, *first, SEP, *second, SEP]
        rows.append(row + [PAD] * (max_len - len(row)))
    return rows


def test_batch_equals_its_rows():
    texts = [(3, 5), (1, 1), (7, 2), (2, 7), (1, 8), (8, 1)]
    pairs = stored(texts)
    for indices in ([], [0], [5], [4, 1, 1, 3], list(range(6))):
        for max_len in (12, 13, 17):
            batch = pairs.batch(np.array(indices, np.int64), max_len)
            assert batch["inputs"].shape == (len(indices), max_len)
            assert batch["inputs"].tolist() == row_by_row(pairs, indices, max_len)
            assert batch["first_len"].tolist() == [texts[i][0] for i in indices]
            assert batch["second_len"].tolist() == [texts[i][1] for i in indices]
            assert batch["example"].tolist() == indices
            assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}


def test_first_returns_an_independent_split(monkeypatch):
    monkeypatch.setattr("language.corpus.pairs._TOKENS_PER_COUNT", 7)
    pairs = stored([(3, 5), (1, 1), (7, 2), (99, 99), (99, 99)])
    for count in (2, 5, 7):
        part = pairs.first(count)
        assert len(part) == min(count, 5)
        rows = range(len(part))
        assert [part[i] for i in rows] == [pairs[i] for i in rows]
        assert part.batch(np.arange(2), 13)["inputs"].tolist() == row_by_row(pairs, [0, 1], 13)
        tokens = [token for i in rows for text in part[i] for token in text]
        assert part.token_counts().tolist() == np.bincount(tokens, minlength=VOCAB).tolist()


def test_rejects_rows_that_are_too_short_or_out_of_range():
    pairs = stored([(3, 5), (1, 1), (7, 2)]).first(2)
    with pytest.raises(ValueError, match="max_len=11"):
        pairs.batch(np.arange(2), 8 + NUM_SPECIAL - 1)
    pairs.batch(np.array([1]), 5)
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"got rows {index} to {index}"):
            pairs.batch(np.array([index]), 13)
        with pytest.raises(IndexError, match="has rows 0 to 1"):
            pairs[index]
