"""Statistics are counted by hand on a few examples."""

import numpy as np
import pytest

from language.glue import TASKS, statistics
from tests.language.glue.test_examples import split_of


def test_a_split_in_numbers():
    texts = [[[7] * 3, [8] * 2], [[7], [8] * 5], [[7] * 2, [8] * 2], [[7], [8]]]
    found = statistics.of_tokens(split_of(texts, np.array([0, 1, 1, 1], np.int32)), TASKS["rte"], 8)
    assert found == {
        "examples": 4,
        "labels": {"entailment": 0.25, "not_entailment": 0.75},
        "length": {"5 %": 5, "50 %": 8, "95 %": 9, "longest": 9},
        "truncated": 0.25,  # of 5, 7, 8 and 9 tokens, only the last
    }


def test_scores_have_a_mean_and_missing_labels_none():
    texts = [[[7], [8]]] * 2
    labels = np.array([1.0, 4.0], np.float32)
    found = statistics.of_tokens(split_of(texts, labels), TASKS["stsb"], 8)
    assert found["labels"] == {"mean": 2.5, "deviation": 1.5}
    assert statistics.of_tokens(split_of(texts), TASKS["stsb"], 8)["labels"] is None


@pytest.mark.parametrize("name", ["rte", "stsb"])
def test_the_table_has_a_row_for_each_split(name):
    task, texts = TASKS[name], [[[7] * 1200, [8]], [[7], [8]]]
    labels = np.array([0, 1], np.float32 if task.is_regression else np.int32)
    splits = {"train": split_of(texts, labels), "test": split_of(texts)}
    page = statistics.markdown(
        task,
        {name: statistics.of_tokens(split, task, 9) for name, split in splits.items()},
        {
            "different": {"train": 1_234, "test": 2},
            "shared": {"train/test": 1},
            "left_out": {"train": [4, 9]},
        },
        max_len=9,
    )
    header, rule, train, test = page.splitlines()[:4]
    assert header.count("|") == rule.count("|") == train.count("|") == test.count("|")
    assert train.startswith("| train | 2 | 1,234 |")
    assert train.endswith(", 1,204 | 50.00 % |")
    assert "0.50 ± 0.50" in train if task.is_regression else "50.0 %, 50.0 %" in train
    assert "| none |" in test
    assert "train/test 1." in page
    assert "Torn or empty rows skipped in train: 2." in page
