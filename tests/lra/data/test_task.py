import dataclasses
import mmap
import os

import numpy as np
import pytest

from lra.data.task import DataConfig, Split

SEQUENCES = [[3, 0, 5], [7], [1, 2, 3, 4, 5, 6, 7], []]


@pytest.fixture
def split():
    return Split(
        np.array([token for sequence in SEQUENCES for token in sequence], np.uint8),
        np.array([0, 3, 4, 11, 11]),
        np.array([2, 9, 4, 0], np.int32),
    )


def test_a_batch_is_cut_and_padded_to_max_len(split):
    batch = split.batch(np.array([2, 0, 3]), max_len=5)
    np.testing.assert_array_equal(
        batch["inputs"], [[1, 2, 3, 4, 5], [3, 0, 5, 0, 0], [0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(batch["labels"], [4, 2, 0])
    assert {name: array.dtype.name for name, array in batch.items()} == {
        "inputs": "int32",
        "mask": "bool",
        "labels": "int32",
    }


def test_the_mask_comes_from_lengths_and_not_from_token_values(split):
    batch = split.batch(np.array([0, 2]), max_len=5)  # sequence 0 holds a token 0
    np.testing.assert_array_equal(batch["mask"], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def test_a_batch_of_three_is_three_batches_of_one(split):
    indices = np.array([1, 3, 1])
    together = split.batch(indices, max_len=5)
    alone = [split.batch(indices[i : i + 1], max_len=5) for i in range(3)]
    for name, array in together.items():
        np.testing.assert_array_equal(array, np.concatenate([batch[name] for batch in alone]))


@pytest.mark.parametrize("index", [-1, 4])
def test_rows_outside_a_split_are_refused(split, index):
    with pytest.raises(IndexError, match="rows 0 to 3"):
        split.batch(np.array([0, index]), max_len=5)
    with pytest.raises(IndexError):
        split[index]


def test_a_split_can_be_walked_through(split):
    assert [(tokens.tolist(), label) for tokens, label in split] == list(
        zip(SEQUENCES, [2, 9, 4, 0], strict=True)
    )


def test_a_saved_split_is_mapped_from_the_disk_and_cannot_be_changed(split, tmp_path):
    split.save(tmp_path, "valid")
    opened = Split.open(tmp_path, "valid")
    for field in dataclasses.fields(Split):
        np.testing.assert_array_equal(getattr(opened, field.name), getattr(split, field.name))
        assert getattr(opened, field.name).dtype == getattr(split, field.name).dtype
    assert isinstance(opened.tokens.base, (np.memmap, mmap.mmap))
    with pytest.raises(ValueError, match="read-only"):
        opened.tokens[0] = 1


@pytest.mark.parametrize("wrong", [{"max_len": 0}, {"examples": -1}, {"workers": -2}])
def test_a_config_that_means_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=rf"data\.{next(iter(wrong))} is"):
        DataConfig(**{"task": "listops", "max_len": 7, **wrong})


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinities")
def test_zero_workers_are_the_cores_that_we_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 11})
    assert DataConfig(task="listops", max_len=7).num_processes == 3
    assert DataConfig(task="listops", max_len=7, workers=2).num_processes == 2
