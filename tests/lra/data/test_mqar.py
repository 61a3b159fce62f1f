import dataclasses

import numpy as np
import pytest

from lra.data import DataConfig, describe, load, mqar
from lra.data.baselines import baselines
from lra.data.task import Padding

CONFIG = DataConfig(task="mqar-128-16", max_len=128, examples=20)


@pytest.fixture
def task():
    return load(CONFIG)


def test_every_masked_token_follows_a_key_and_has_the_value_of_that_key(task):
    for split in task.splits.values():
        batch = split.batch(np.arange(len(split)), Padding(128, 128))
        assert batch["mask"].all()
        for tokens, positions, labels in zip(
            batch["inputs"], batch["positions"], batch["labels"], strict=True
        ):
            value_of = dict(zip(tokens[0:32:2], tokens[1:32:2], strict=True))
            assert len(value_of) == 16
            assert sorted(positions) == np.flatnonzero(tokens == mqar.MASK).tolist()
            assert [value_of[key] for key in tokens[positions - 1]] == (labels + 128).tolist()
            assert (tokens[32:] != mqar.BLANK).sum() == 32


def test_queries_are_everywhere_and_answers_are_uniform():
    rng = np.random.default_rng(0)
    tokens, positions, labels = mqar.generate(2000, length=64, pairs=4, rng=rng)
    counts = np.bincount(positions.ravel(), minlength=64)
    assert (counts[:8] == 0).all()
    assert (counts[9::2] > 200).all()  # 8,000 queries in 28 slots
    assert np.bincount(labels.ravel(), minlength=mqar.NUM_CLASSES).min() > 30  # of 62.5
    assert len(np.unique(tokens[:, 0])) == mqar.FIRST_VALUE - mqar.FIRST_KEY


def test_fewer_examples_are_the_first_of_more_and_splits_differ(task):
    more = load(dataclasses.replace(CONFIG, examples=30))
    for name, split in task.splits.items():
        np.testing.assert_array_equal(split.labels, more.splits[name].labels[:20])
        np.testing.assert_array_equal(split.sequences[7], more.splits[name].sequences[7])
    assert (task.splits["valid"].labels != task.splits["test"].labels).any()


def test_generated_data_never_change_and_depend_on_the_seed(task):
    """Golden: another hash means other data than those of the stored results."""
    assert task.sha256 == "69d8445db41f701eccf757e104f93b10a83a3bb5533a68bf26a85842007a9a78"
    other = load(dataclasses.replace(CONFIG, seed=1))
    for name, split in task.splits.items():
        assert (split.labels != other.splits[name].labels).any()


def test_sizes_leave_room_for_the_queries_and_have_enough_keys():
    assert describe("mqar-256-64").targets == 64
    assert describe("mqar-504-126").targets == 126
    for name, most in (("mqar-255-64", 63), ("mqar-512-127", 126), ("mqar-128-0", 32)):
        with pytest.raises(ValueError, match=f"1 to {most}"):
            describe(name)


def test_rejects_files_and_a_length_that_truncates_answers(task):
    for options in ({"dir": "somewhere"}, {"source": "files"}):
        with pytest.raises(ValueError, match="MQAR"):
            load(dataclasses.replace(CONFIG, **options))
    with pytest.raises(ValueError, match="at least 128"):
        task.splits["train"].batch(np.arange(3), Padding(40, 40))


def test_the_expected_accuracy_of_the_most_frequent_value_is_a_baseline(task):
    assert baselines(task)["most frequent value"] == mqar.most_frequent(16)
    assert mqar.most_frequent(1) == 1
    assert mqar.most_frequent(2) == pytest.approx(1 / 128 + 0.5 * 127 / 128, abs=3e-3)
