"""Windows, best spans, and SQuAD's metrics beside known answers."""

import itertools

import numpy as np
import pytest

from language.finetune.answering import answer_tokens, exact_match, f1, windows


@pytest.mark.parametrize("tokens", [0, 1, 6, 7, 8, 11, 30])
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_windows_cover_a_context_and_overlap(tokens, overlap):
    found = windows(tokens, 7, overlap)
    covered = {token for start, length in found for token in range(start, start + length)}
    assert covered == set(range(tokens))
    for one, other in itertools.pairwise(found):
        assert one[1] == 7
        assert sum(one) - other[0] == overlap
        assert sum(other) > sum(one)
    assert len(found) == 1 or tokens > 7


@pytest.mark.parametrize(
    ("truth", "guess", "exact", "score"),
    [
        ("Denver Broncos", "The Denver Broncos!", 1, 1),  # articles, case and punctuation
        ("the theatre", "theatre", 1, 1),
        ("10th century", "the 10th and 11th century", 0, 2 * 2 / (2 + 4)),
        ("a cat cat", "cat", 0, 2 * 1 / 3),  # repeated words count once each
        ("Rome", "Paris", 0, 0),
        ("", "", 1, 1),
        ("", "Rome", 0, 0),
        ("Rome", "the", 0, 0),  # nothing is left of the guess
    ],
)
def test_metrics_are_those_of_squad(truth, guess, exact, score):
    assert exact_match(truth, guess) == exact
    assert f1(truth, guess) == pytest.approx(score)


def test_tokens_of_an_answer_overlap_its_characters():
    spans = np.array([[0, 3], [4, 8], [8, 9], [10, 15]], np.int32)
    assert answer_tokens(spans, 4, 9) == (1, 2)
    assert answer_tokens(spans, 5, 7) == (1, 1)  # a part of a token
    assert answer_tokens(spans, 2, 11) == (0, 3)
    assert answer_tokens(spans, 9, 10) is None  # a space
