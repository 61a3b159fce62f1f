import mmap

import numpy as np
import pytest

from lra.data.task import DataConfig, Padding, Sequences, Split, image_to_text

FIVE = Padding(max_len=5, padded_len=5)
SEQUENCES = [[3, 0, 5], [7], [1, 2, 3, 4, 5, 6, 7], []]


@pytest.fixture
def split():
    tokens = np.array([token for sequence in SEQUENCES for token in sequence], np.uint8)
    return Split(Sequences(tokens, np.array([0, 3, 4, 11, 11])), np.array([2, 9, 4, 0], np.int32))


def test_a_batch_is_truncated_and_padded(split):
    """The mask comes from the lengths: sequence 0 has a token 0. With `zero_is_padding` it is masked."""
    batch = split.batch(np.array([2, 0, 3]), Padding(max_len=5, padded_len=6))
    np.testing.assert_array_equal(
        batch["inputs"], [[1, 2, 3, 4, 5, 0], [3, 0, 5, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch["mask"], [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(batch["labels"], [4, 2, 0])
    assert [array.dtype.name for array in batch.values()] == ["int32", "bool", "int32"]
    batch = split.batch(np.array([0, 1]), Padding(5, 5, zero_is_padding=True))
    np.testing.assert_array_equal(batch["mask"], [[1, 0, 1, 0, 0], [1, 0, 0, 0, 0]])


@pytest.mark.parametrize("index", [-1, 4])
def test_rows_of_a_split_are_its_examples(split, index):
    labels = split.labels.tolist()
    assert [(ids.tolist(), label) for ids, label in split] == [*zip(SEQUENCES, labels, strict=True)]
    with pytest.raises(IndexError, match="0 to 3"):
        split.batch(np.array([0, index]), FIVE)
    with pytest.raises(IndexError):
        split[index]


def test_a_saved_split_is_memory_mapped_and_read_only(split, tmp_path):
    split.save(tmp_path, "valid")
    opened = Split.open(tmp_path, "valid")
    for name in ("tokens", "offsets"):
        this, that = getattr(opened.sequences, name), getattr(split.sequences, name)
        np.testing.assert_array_equal(this, that, strict=True)
    np.testing.assert_array_equal(opened.labels, split.labels)
    assert isinstance(opened.sequences.tokens.base, (np.memmap, mmap.mmap))
    with pytest.raises(ValueError, match="read-only"):
        opened.sequences.tokens[0] = 1


def test_the_first_rows_of_a_split_are_a_split(split):
    assert [label for _, label in split.first(2)] == [2, 9]
    assert len(split.first(7)) == 4


@pytest.fixture
def pairs(split):
    return Split(
        split.sequences,
        np.array([1, 0, 1], np.int32),
        np.array([[0, 2], [1, 1], [3, 0]], np.int32),
    )


def test_a_batch_of_pairs_equals_two_batches_of_sequences(split, pairs):
    first, second, label = pairs[0]
    assert (first.tolist(), second.tolist(), label) == (SEQUENCES[0], SEQUENCES[2], 1)
    batch = pairs.batch(np.array([2, 0]), FIVE)
    firsts, seconds = split.batch(np.array([3, 0]), FIVE), split.batch(np.array([0, 2]), FIVE)
    for name in ("inputs", "mask"):
        np.testing.assert_array_equal(batch[f"{name}1"], firsts[name])
        np.testing.assert_array_equal(batch[f"{name}2"], seconds[name])
    np.testing.assert_array_equal(batch["labels"], [1, 1])
    assert len(pairs.first(2)) == 2


def test_saved_pairs_share_their_sequences(pairs, tmp_path):
    pairs.save(tmp_path, "test")
    opened = Split.open(tmp_path, "test", documents=pairs.sequences)
    np.testing.assert_array_equal(opened.pairs, pairs.pairs)
    np.testing.assert_array_equal(opened.labels, pairs.labels)
    assert opened.sequences is pairs.sequences


@pytest.mark.parametrize(
    ("longest", "tokens"), [(0, 3), (1, 3), (3, 3), (4, 6), (7, 9), (10, 11), (11, 11), (99, 11)]
)
def test_a_batch_is_padded_to_a_multiple_up_to_the_full_length(longest, tokens):
    config = DataConfig(task="listops", max_len=10, padded_len=11, pad_to_multiple_of=3)
    assert config.padding == Padding(10, 11, multiple=3)
    assert config.padding.for_longest(longest) == Padding(10, tokens, multiple=3)
    assert Padding(10, 11).for_longest(longest) == Padding(10, 11)


def test_lengths_of_rows(split, pairs):
    assert split.lengths.tolist() == [3, 1, 7, 0]
    assert split.first(2).lengths.tolist() == [3, 1]
    assert pairs.lengths.tolist() == [7, 1, 3]  # of the longer sequence
    assert pairs.first(2).lengths.tolist() == [7, 1]


@pytest.mark.parametrize(
    "wrong",
    [{"max_len": 0}, {"padded_len": 5}, {"examples": -1}, {"workers": -2}, {"curriculum": -1}],
)
def test_rejects_invalid_configs(wrong):
    with pytest.raises(ValueError, match=rf"data\.{next(iter(wrong))}"):
        DataConfig(**{"task": "listops", "max_len": 7, **wrong})
    assert DataConfig(task="listops", max_len=7).padding == Padding(7, 7)
    assert DataConfig(task="listops", max_len=7, padded_len=11).padding == Padding(7, 11)


@pytest.mark.parametrize(
    ("source", "dir", "known", "found"),
    [
        ("auto", "x", "files tfds", "files"),
        ("files", "x", "files tfds", "files"),
        ("tfds", "x", "files tfds", "tfds"),
        ("tfds", "", "files tfds", "tfds"),
        ("auto", "x", "files generated", "files"),
        ("auto", "", "files generated", "generated"),
        ("generated", "", "files generated", "generated"),
        ("auto", "", "generated", "generated"),
        ("generated", "x", "files tfds", "auto or files or tfds"),
        ("auto", "", "files tfds", "the reviews: .*source=tfds"),
        ("auto", "", "files", r"the reviews: .*dir to the folder .* them\.$"),
        ("generated", "x", "files generated", "data.dir='x'.* data.source to files"),
        ("auto", "x", "generated", r"data.dir='x'.* empty\.$"),
    ],
)
def test_source_is_inferred_from_source_and_dir_or_rejected(source, dir, known, found):
    config = DataConfig(task="text", max_len=7, source=source, dir=dir)
    if found in known.split():
        assert config.choose_source("Text", known.split(), "the reviews") == found
        return
    with pytest.raises(ValueError, match=found):
        config.choose_source("Text", known.split(), "the reviews")


def test_a_character_shows_the_mean_brightness_of_two_rows():
    """Missing pixels are black, and large images are downsampled."""
    pixels = np.array([[0, 255, 0, 100], [0, 255, 255, 100], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert image_to_text(pixels.ravel(), (4, 4)) == " @=-\n"
    assert image_to_text(np.full(2, 255), (2, 4)) == "=="
    assert image_to_text(np.full(128 * 128, 255), (128, 128)) == "\n".join(["@" * 64] * 32)


def test_ids_start_at_the_offset_and_padding_stays_zero():
    sequences = Sequences.from_bytes([b"\x03\x00\xff", b""], first_id=1)
    assert [sequences[i].tolist() for i in range(2)] == [[4, 1, 256], []]
    inputs, _ = sequences.rows(np.array([0, 1]), FIVE)
    assert inputs.tolist() == [[4, 1, 256, 0, 0], [0] * 5]
