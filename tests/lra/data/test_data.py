import pytest

from lra import data


def test_error_suggests_the_nearest_task():
    with pytest.raises(ValueError, match=r"Unknown task 'listop'; did you mean listops"):
        data.load(data.DataConfig(task="listop", max_len=7))


def test_error_lists_all_tasks_if_none_is_near():
    with pytest.raises(ValueError, match=r"; known: image, listops, .*, retrieval, text\.$"):
        data.load(data.DataConfig(task="#", max_len=7))


def test_model_size_is_known_before_the_data_are_prepared():
    info = data.describe("listops")
    assert (info.vocab_size, info.num_classes) == (16, 10)
