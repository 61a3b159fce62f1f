import pytest

from lra import data


def test_an_unknown_task_is_answered_with_the_nearest_known_one():
    with pytest.raises(ValueError, match=r"Unknown task 'listop'; did you mean listops"):
        data.load(data.DataConfig(task="listop", max_len=7))


def test_a_task_that_resembles_nothing_is_answered_with_all_of_them():
    with pytest.raises(ValueError, match=r"; known: image, listops, .*, retrieval, text\.$"):
        data.load(data.DataConfig(task="#", max_len=7))


def test_the_size_of_a_model_is_known_before_the_data_are_there():
    info = data.describe("listops")
    assert (info.vocab_size, info.num_classes) == (16, 10)
