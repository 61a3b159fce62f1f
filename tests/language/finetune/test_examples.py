"""Batches equal truncation token by token; samples are stratified by label."""

import dataclasses

import numpy as np
import pytest

from language.finetune.examples import Example, Split, sample
from language.finetune.glue import GlueConfig
from language.finetune.glue_tasks import TASKS
from tests.language.finetune.glue_fakes import Words

PAD, CLS, SEP = 91, 92, 93
TOKENIZER = Words(pad_id=PAD, cls_id=CLS, sep_id=SEP)
ROBERTA = dataclasses.replace(TOKENIZER, pair_separators=2)


def split_of(texts, labels=None, truncation="head", tokenizer=TOKENIZER):
    """A split of examples that are lists of lists of tokens."""
    lengths = np.array([[len(text) for text in example] for example in texts])
    ends = np.cumsum(lengths.ravel()).reshape(lengths.shape)
    return Split(
        tokens=np.array(
            [token for example in texts for text in example for token in text], np.uint16
        ),
        starts=ends - lengths,
        lengths=lengths,
        labels=np.zeros(len(texts), np.int32) if labels is None else labels,
        is_labeled=labels is not None,
        owners=np.arange(len(texts)),
        ids=np.array([str(row) for row in range(len(texts))]),
        tokenizer=tokenizer,
        truncation=truncation,
    )


def cut_pair(first, second, room):
    """Truncates one token at a time, as in BERT's code."""
    first, second = list(first), list(second)
    while len(first) + len(second) > room:
        (first if len(first) > len(second) else second).pop()
    return first, second


@pytest.fixture
def pairs():
    rng = np.random.default_rng(7)
    return [
        [rng.integers(5, 90, size).tolist() for size in rng.integers(0, 14, 2)] for _ in range(61)
    ]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize("max_len", [6, 7, 13, 16, 31])
def test_batch_of_pairs_equals_truncation_token_by_token(pairs, max_len, tokenizer):
    split = split_of(pairs, tokenizer=tokenizer)
    batch = split.batch(np.arange(len(pairs)), max_len)
    between = [SEP] * tokenizer.pair_separators
    assert (split.padded_lengths(max_len) == batch["mask"].sum(axis=1)).all()
    for row, (first, second) in enumerate(pairs):
        a, b = cut_pair(first, second, max_len - 2 - len(between))
        inputs = [CLS, *a, *between, *b, SEP]
        types = [0] * (1 + len(a) + len(between)) + [1] * (len(b) + 1)
        padding = max_len - len(inputs)
        assert batch["inputs"][row].tolist() == inputs + [PAD] * padding
        assert batch["mask"][row].tolist() == [True] * len(inputs) + [False] * padding
        assert batch["types"][row].tolist() == types + [0] * padding


def test_a_batch_of_single_texts_keeps_their_heads():
    texts = [[[11, 12, 13, 14, 15, 16, 17]], [[21]], [[]], [[31, 32, 33]]]
    batch = split_of(texts).batch(np.array([3, 0, 2, 1]), 5)
    assert batch["inputs"].tolist() == [
        [CLS, 31, 32, 33, SEP],
        [CLS, 11, 12, 13, SEP],
        [CLS, SEP, PAD, PAD, PAD],
        [CLS, 21, SEP, PAD, PAD],
    ]
    assert batch["mask"].sum(axis=1).tolist() == [5, 5, 2, 3]
    assert not batch["labels"].any()
    assert not batch["types"].any()


def test_the_tokenizer_sets_the_side_of_truncation_and_whether_there_are_types():
    tokenizer = dataclasses.replace(TOKENIZER, truncation_side="left", has_types=False)
    batch = split_of([[[1, 2, 3, 4, 5], [6, 7, 8, 9]]], tokenizer=tokenizer).batch(np.arange(1), 8)
    assert batch["inputs"].tolist() == [[CLS, 3, 4, 5, SEP, 8, 9, SEP]]
    assert not batch["types"].any()


def test_head_tail_keeps_a_quarter_of_the_head():
    texts = [[list(range(10, 29))], [list(range(30, 43))], [[50, 51, 52]]]
    batch = split_of(texts, truncation="head_tail").batch(np.arange(3), 15)
    assert batch["inputs"][0].tolist() == [CLS, 10, 11, 12, *range(19, 29), SEP]
    assert batch["inputs"][1].tolist() == [CLS, *range(30, 43), SEP]  # fits exactly
    assert batch["inputs"][2].tolist() == [CLS, 50, 51, 52, SEP, *[PAD] * 10]


def test_rejects_indices_out_of_range(pairs):
    with pytest.raises(IndexError, match="has rows 0 to 60; got rows 3 to 61"):
        split_of(pairs).batch(np.array([3, 61]), 13)


def test_examples_are_complete_with_all_their_rows(pairs):
    split = split_of(pairs)
    assert split.count_complete(3) == 3
    owned = dataclasses.replace(split.take(np.arange(6)), owners=np.array([0, 0, 0, 1, 2, 2]))
    assert [owned.count_complete(rows) for rows in (3, 4, 5, 6)] == [1, 2, 2, 3]
    assert owned.take(np.array([5, 1])).owners.tolist() == [2, 0]
    with pytest.raises(ValueError, match=r"eval.max_examples=2: the first example"):
        owned.count_complete(2)


def test_sample_is_stratified_by_label(pairs):
    labels = np.array([0] * 40 + [1] * 15 + [2] * 6, np.int32)
    split = split_of(pairs, labels)
    for count in range(1, 62):
        found = np.bincount(labels[sample(split, count, seed=3)], minlength=3)
        assert np.abs(found - count * np.array([40, 15, 6]) / 61).max() <= 1.5


def test_a_larger_sample_begins_with_the_smaller_and_another_seed_is_another(pairs):
    classes, scores = np.arange(61, dtype=np.int32) % 3, np.linspace(0, 5, 61, dtype=np.float32)
    for labels in (None, classes, scores):
        split = split_of(pairs, labels)
        whole = sample(split, 61, seed=0)
        assert sorted(whole.tolist()) == list(range(61))
        assert sample(split, 20, seed=0).tolist() == whole[:20].tolist()
        assert sample(split, 20, seed=1).tolist() != whole[:20].tolist()
        assert sorted(whole[:20].tolist()) != list(range(20))


def test_take_follows_all_columns(pairs):
    split = split_of(pairs, np.arange(61, dtype=np.int32))
    rows = np.array([44, 3, 17])
    taken = split.take(rows)
    assert len(taken) == 3
    assert taken.ids.tolist() == ["44", "3", "17"]
    ours, theirs = taken.batch(np.arange(3), 13), split.batch(rows, 13)
    for name, array in theirs.items():
        np.testing.assert_array_equal(ours[name], array)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(101, "uint16"), (2**16 + 1, "int32")])
def test_saved_split_can_be_opened(tmp_path, vocab_size, dtype):
    tokenizer = Words(vocab_size)
    task = TASKS["stsb"]
    examples = [
        Example(("a b c", "d"), "2.5", id="x7"),
        Example(("", "e f"), 0.0),
        Example(("g", "h i j k"), "5"),
    ]
    task.encode(tmp_path, "valid", examples, tokenizer)
    split = task.open(tmp_path, "valid", TOKENIZER, GlueConfig(task="stsb"))
    assert split.tokens.dtype == dtype
    assert split.ids.tolist() == ["x7", "1", "2"]
    assert split.labels.tolist() == [2.5, 0.0, 5.0]
    rows = split.batch(np.arange(3), 9)["inputs"].tolist()
    for row, example in zip(rows, examples, strict=True):
        a, b = tokenizer.encode(example.texts)
        assert row[: len(a) + len(b) + 3] == [CLS, *a, SEP, *b, SEP]
