import itertools
import random
from collections import Counter

import pytest

from language import wordpiece

SPECIAL = ["[PAD]", "[UNK]"]


def words(count, seed=0, letters="abcdefg"):
    """Word counts with many ties."""
    rng = random.Random(seed)
    return Counter("".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(count))


def by_the_book(counts, vocab_size, first):
    """Recounts all pairs of all words for every piece."""
    spelt = {word: [word[0], *(f"##{c}" for c in word[1:])] for word in counts}
    pieces = sorted({c for word in counts for c in word})
    pieces += sorted({f"##{c}" for word in counts for c in word[1:]})
    while len(first) + len(pieces) < vocab_size:
        pairs = Counter()
        for word, parts in spelt.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda p: (-pairs[p], *map(pieces.index, p)), default=None)
        if best is None or pairs[best] < 2:
            break
        piece = best[0] + best[1].removeprefix("##")
        if piece not in pieces:
            pieces.append(piece)
        for parts in spelt.values():
            i = 0
            while i < len(parts) - 1:
                if tuple(parts[i : i + 2]) == best:
                    parts[i : i + 2] = [piece]
                i += 1
    return [*first, *pieces]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("letters", ["a", "ab", "abcdefg"])
def test_pieces_equal_those_of_a_naive_algorithm(seed, letters):
    counts = words(211, seed, letters)
    assert wordpiece.learn(counts, 97, SPECIAL) == by_the_book(counts, 97, SPECIAL)


def test_vocabulary_has_the_requested_size_and_no_repeats():
    counts = words(1009)
    vocabulary = wordpiece.learn(counts, 211, SPECIAL)
    assert len(vocabulary) == len(set(vocabulary)) == 211
    assert vocabulary[:2] == SPECIAL
    shuffled = random.Random(1).sample(list(counts.items()), len(counts))
    assert wordpiece.learn(dict(shuffled), 211, SPECIAL) == vocabulary
    letters_like_the_prefix = wordpiece.learn({"##a": 50, "xa": 40}, 100, [])
    assert len(letters_like_the_prefix) == len(set(letters_like_the_prefix))
    assert "xa" in letters_like_the_prefix


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        (
            {"ab": 1, "cd": 2},
            [*"abcd", "##b", "##d", "cd"],
        ),  # a pair that occurs once is not merged
        ({"ab": 30_000, "aç": 3, "é": 4}, ["a", "b", "é", "##b", "ab"]),  # rare letters are dropped
    ],
)
def test_rare_pairs_and_letters_are_left_out(counts, expected):
    assert wordpiece.learn(counts, 100, []) == expected


def test_rejects_a_vocabulary_smaller_than_the_letters():
    with pytest.raises(ValueError, match="need 16"):
        wordpiece.learn(words(211), 15, SPECIAL)
    assert len(wordpiece.learn(words(211), 16, SPECIAL)) == 16
