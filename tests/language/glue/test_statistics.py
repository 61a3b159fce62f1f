"""Statistics are counted by hand on a few examples."""

import numpy as np

from language.glue import TASKS
from language.glue import __main__ as statistics
from language.tasks.examples import Example
from tests.language.tasks.test_examples import split_of

LENGTHS = "tokens: 5 %, 50 %, 95 %, longest"


def test_row_of_a_tokenized_split():
    texts = [[[7] * 3, [8] * 2], [[7], [8] * 5], [[7] * 2, [8] * 2], [[7], [8]]]
    split = split_of(texts, np.array([0, 1, 1, 1], np.int32))
    assert statistics.token_row(TASKS["rte"], split, 8) == {
        "examples": "4",
        "entailment, not_entailment": "25.0 %, 75.0 %",
        LENGTHS: "5, 8, 9, 9",
        "truncated at 8": "25.00 %",  # of 5, 7, 8 and 9 tokens, only the last
    }


def test_scores_have_a_mean_and_missing_labels_none():
    texts = [[[7] * 1200, [8]], [[7], [8]]]
    labels = np.array([1.0, 4.0], np.float32)
    row = statistics.token_row(TASKS["stsb"], split_of(texts, labels), 8)
    assert row["scores"] == "2.50 ± 1.50"
    assert row[LENGTHS].endswith(", 1,204")
    assert statistics.token_row(TASKS["stsb"], split_of(texts), 8)["scores"] == "none"


def test_row_of_a_split_in_words():
    examples = [Example(("a b", "c"), "not_entailment"), Example(("d", "e"), "not_entailment")]
    row = statistics.word_row(TASKS["rte"], examples)
    assert row["entailment, not_entailment"] == "0.0 %, 100.0 %"
    assert row[LENGTHS.replace("tokens", "words")] == "2, 2, 3, 3"
