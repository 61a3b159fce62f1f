"""Entities by conlleval's rule, and parts of long sentences."""

import numpy as np
import pytest

from language.finetune.tagging import Span, entity_scores, spans, split_sentence


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-PER I-PER O B-LOC", [("PER", 0, 2), ("LOC", 3, 4)]),
        ("B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        ("B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),  # another kind begins an entity
        ("O I-ORG I-ORG O", [("ORG", 1, 3)]),  # IOB1
        ("I-PER B-PER O I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 3, 4)]),
        ("B-A-B I-A-B", [("A-B", 0, 2)]),  # a kind may contain a hyphen
        ("B-PER E-PER S-LOC S-LOC", [("PER", 0, 2), ("LOC", 2, 3), ("LOC", 3, 4)]),  # IOBES
        ("B-PER I-PER I-PER E-PER I-PER", [("PER", 0, 4), ("PER", 4, 5)]),
        ("B-PER S-PER E-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)]),
        ("B-PER L-PER U-LOC O B-A I-A L-A", [("PER", 0, 2), ("LOC", 2, 3), ("A", 4, 7)]),  # BILOU
        ("B-PER M-PER E-PER S-LOC", [("PER", 0, 3), ("LOC", 3, 4)]),  # BMES
        ("O O", []),
        ("", []),
    ],
)
def test_entities_are_those_of_conlleval(tags, expected):
    assert spans(tags.split()) == {Span(*span) for span in expected}


def test_scores_by_hand_and_their_errors():
    """Of 4 true and 3 predicted entities, 2 are right: a wrong end and a wrong kind are mistakes."""
    truth = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"], ["O", "B-LOC"], ["O"]]
    guesses = [["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O"], ["O", "O"], ["O"]]
    scores, errors = entity_scores(truth, guesses)
    assert scores == pytest.approx(
        {"f1": 4 / 7, "precision": 2 / 3, "recall": 1 / 2, "accuracy": 7 / 9}
    )
    # A ratio of sums: 2 TP is 4 0 0 0, and true + predicted is 4 2 1 0.
    residuals = np.array([4, 0, 0, 0]) - 4 / 7 * np.array([4, 2, 1, 0])
    assert errors["f1"] == pytest.approx(np.sqrt(np.square(residuals).sum()) / 7)
    nothing, _ = entity_scores([["O", "O"]], [["O", "O"]])
    assert nothing == {"f1": 0, "precision": 0, "recall": 0, "accuracy": 1}


@pytest.mark.parametrize("room", [1, 2, 5, 40])
def test_parts_of_a_sentence_begin_with_words_and_fit(room):
    lengths = [1, 3, 1, 1, 7, 2, 1, 1, 1, 4]
    first_tokens = np.cumsum(lengths) - lengths
    parts = split_sentence(lengths, room)
    assert all(0 < length <= room for _, length in parts)
    covered = [token for start, length in parts for token in range(start, start + length)]
    assert set(first_tokens) <= set(covered)  # every word has a prediction
    assert {start for start, _ in parts} <= set(first_tokens)
    if max(lengths) <= room:
        assert covered == list(range(sum(lengths)))
        following = [start for start, _ in parts[1:]]
        own = dict(zip(first_tokens.tolist(), lengths, strict=True))
        assert all(
            length + own[after] > room for (_, length), after in zip(parts, following, strict=False)
        )
