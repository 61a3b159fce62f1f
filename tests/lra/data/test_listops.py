"""ListOps: expressions, the prepared task and the official files."""

import dataclasses
import hashlib
import itertools
import logging
import pathlib
import sys

import numpy as np
import pytest

from lra import data
from lra.data import listops
from tests.helpers import data_folders
from tests.lra.data.fakes import Words, official_text, recursive_value, write_tsv

CONFIG = data.DataConfig(task="listops", examples=20, max_len=2048, workers=1)

# (text, value). OFFICIAL_TEXTS has the official spelling of some of them.
EXPRESSIONS = {
    "7": 7,
    "[MAX 2 9 [MIN 4 7 ] 0 ]": 9,
    "[MIN 3 ]": 3,
    "[MED 1 2 ]": 1,  # int(1.5)
    "[MED 9 0 8 2 ]": 5,
    "[MED 8 1 5 ]": 5,
    "[SM 9 8 7 ]": 4,
    "[SM [MAX 1 2 ] [MED 3 [SM 5 5 ] 9 ] 6 ]": 1,
}
OFFICIAL_TEXTS = {
    "7": "7",
    "[MIN 3 ]": "( ( [MIN 3 ) ] )",
    "[MAX 2 9 [MIN 4 7 ] 0 ]": "( ( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )",
}


# --- Expressions


@pytest.mark.parametrize(("text", "value"), EXPRESSIONS.items())
def test_evaluates_expressions(text, value):
    assert listops.evaluate(text) == value
    assert recursive_value(Words(text)) == value


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_accepts_other_spellings_and_white_space(text):
    value = EXPRESSIONS[text]
    assert listops.evaluate(text.replace("]", "X")) == value
    assert listops.evaluate(text.replace(" ", "\n\t ") + " ") == value
    assert listops.evaluate(text.replace(" ]", "]").replace(" [", "[")) == value
    assert listops.evaluate(official_text(listops.encode(text))) == value


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "The expression is empty"),
        (" ( ) ", "The expression is empty"),
        ("[MAX 1 2", r"\[MAX at token 1 is never closed"),
        ("[MAX 1 [SM 2 ]", r"\[MAX at token 1 is never closed"),
        ("[MAX ]", r"\[MAX at token 1 has no arguments"),
        ("[MAX 1 [SM ] ]", r"\[SM at token 3 has no arguments"),
        ("]", "Token 1 closes a list, but none is open"),
        ("[MAX 1 ] ]", r"ends before token 4, '\]'"),
        ("1 2", "ends before token 2, '2'"),
        ("[MAX 1 ] [SM 2 ]", r"ends before token 4, '\[SM'"),
        ("[MAX 1 12 ]", "Token 3 is '12'"),
        ("[MAX 1 -2 ]", "Token 3 is '-2'"),
        ("[AVG 1 2 ]", r"Token 1 is '\[AVG'"),
        ("[MAX1 2 ]", r"Token 1 is '\[MAX1'"),
        ("[MAX <pad> ]", "Token 2 is '<pad>'"),
        ("[max 1 ]", r"Token 1 is '\[max'"),
        ("( ( [MAX 1 ) ]", r"has 2 '\(' but 1 '\)'"),
        (") [MAX 1 2 ] (", r"'\)' before its '\('"),
        ("( ) [MAX 1 2 ]", "empty pair"),
        ("[MAX 1 2 ] ()", "empty pair"),
    ],
)
def test_rejects_a_malformed_expression(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        listops.evaluate(text)


def test_evaluates_deeply_nested_trees():
    depth = 5 * sys.getrecursionlimit()
    text = "[MAX " * depth + "3" + " ]" * depth
    assert listops.evaluate(text) == 3
    assert listops.evaluate(official_text(listops.encode(text))) == 3


def test_the_vocabulary_is_fixed():
    assert listops.VOCAB == {
        "<pad>": 0,
        "0": 1,
        "1": 2,
        "2": 3,
        "3": 4,
        "4": 5,
        "5": 6,
        "6": 7,
        "7": 8,
        "8": 9,
        "9": 10,
        "[MAX": 11,
        "[MED": 12,
        "[MIN": 13,
        "[SM": 14,
        "]": 15,
    }


def test_decode_inverts_encode_and_drops_padding():
    text = "[MAX 2 9 [MIN 4 7 ] 0 ]"
    tokens = listops.encode(text)
    assert tokens.dtype == np.uint8
    assert listops.decode(tokens) == text
    assert listops.decode(np.pad(tokens.astype(np.int32), (0, 5))) == text


@pytest.mark.parametrize("text", OFFICIAL_TEXTS)
def test_official_text_is_nested_to_the_left(text):
    assert official_text(listops.encode(text)) == OFFICIAL_TEXTS[text]
    np.testing.assert_array_equal(listops.encode(OFFICIAL_TEXTS[text]), listops.encode(text))


# --- The task


def test_prepared_task_contains_the_generated_trees():
    task = data.load(CONFIG)
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 20,
        "valid": 20,
        "test": 20,
    }
    examples = [example for split in task.splits.values() for example in split]
    lengths = {"min_length": 500, "max_length": 2000}
    trees = list(listops.generate(60, seed=0, num_processes=1, **lengths))
    assert [(bytes(tokens.tolist()), label) for tokens, label in examples] == trees
    assert task.name == "listops"
    tokens, label = task.splits["test"][3]
    assert listops.evaluate(task.decode(tokens)) == label


def test_the_official_sizes_are_the_default():
    assert listops.SIZES == {"train": 96_000, "valid": 2_000, "test": 2_000}


def test_generated_data_never_change():
    """Golden: another hash means other data than those of the stored results."""
    task = data.load(CONFIG)
    content = hashlib.sha256()
    for split in task.splits.values():
        for array in (split.sequences.tokens, split.sequences.offsets, split.labels):
            content.update(np.ascontiguousarray(array).tobytes())
    assert content.hexdigest() == "c922abd2233d8ae63cdd1b67308e1f9f2b634cf5473247400eefed701bd54e72"
    assert task.sha256 == "748f5d55aaa40aecd7d657a729a4c1292dfbf5c45cdc46a0f7937e8aa00d1b49"


@pytest.mark.slow(minutes=1)
def test_full_data_never_change():
    task = data.load(data.DataConfig(task="listops", max_len=2048))
    assert [len(split) for split in task.splits.values()] == [96_000, 2_000, 2_000]
    assert task.sha256 == "99ad845103d02e2eda92759e0244a3878e397eeac07e93a13cbd2b0864133eaa"


def test_preparation_is_logged_once(caplog):
    caplog.set_level(logging.INFO)
    data.load(CONFIG)
    data.load(CONFIG)
    (message,) = caplog.messages
    assert message.startswith("Preparing ListOps: 60 trees, seed 0, 1 processes; will be saved to ")
    assert pathlib.Path(message.split("saved to ")[1]).is_dir()


def test_data_depend_on_seed_and_examples_but_not_on_workers():
    def sha256(**changes):
        return data.load(dataclasses.replace(CONFIG, **changes)).sha256

    assert len({sha256(), sha256(seed=1), sha256(examples=21), sha256(workers=2)}) == 3


# --- The curriculum


def short_trees(count, seed=0):
    chunks = range(-(-count // listops.CHUNK_TREES))
    drawn = [listops.draw_short_trees(i, count=count, seed=seed, max_length=500) for i in chunks]
    return list(itertools.chain(*drawn))


def test_a_curriculum_has_shorter_trees_than_the_task():
    config = dataclasses.replace(CONFIG, examples=60, curriculum=70)
    task = data.load(config)
    curriculum, _ = task.open_curriculum()
    assert len(curriculum) == 60
    assert curriculum.lengths.min() >= 4
    assert curriculum.lengths.max() < 500 < task.splits["train"].lengths.min()
    assert all(listops.evaluate(task.decode(tokens)) == label for tokens, label in curriculum)
    assert task.sha256 == data.load(dataclasses.replace(config, curriculum=0)).sha256
    short = data.load(dataclasses.replace(config, task="listops-short"))
    assert short.open_curriculum()[0].lengths.max() < 100


def test_the_trees_of_a_curriculum_never_change():
    """Golden: another hash means other trees than those of the stored results."""
    content = hashlib.sha256()
    for tree in short_trees(60):
        content.update(tree.tokens + bytes([tree.label]))
    assert content.hexdigest() == "ef46b20a68f96f432a0016386931954545e058aee4eba5d0bd778441f7faee46"


def test_the_trees_of_a_curriculum_grow():
    """Six stages: at least half of the trees have the lengths of their stage, and none are longer."""
    lengths = np.array([len(tree.tokens) for tree in short_trees(6_000)])
    for stage, (start, stop) in enumerate(itertools.pairwise((4, 16, 32, 64, 128, 256, 500))):
        own = lengths[1_000 * stage : 1_000 * (stage + 1)]
        assert start < own.max() < stop
        assert abs(np.mean(own >= start) - (0.5 + 0.5 / (stage + 1))) < 0.05
        assert abs(np.mean(own < 16) - (0.5 / (stage + 1) if stage else 1)) < 0.05


def test_a_curriculum_depends_on_the_seed_but_not_on_workers():
    def trees(**changes):
        config = dataclasses.replace(CONFIG, examples=600, curriculum=600, **changes)
        return [
            (bytes(tokens.tolist()), label)
            for tokens, label in data.load(config).open_curriculum()[0]
        ]

    assert trees() == trees(workers=2) == short_trees(600)
    assert trees(seed=1) == short_trees(600, seed=1) != short_trees(600)
    assert not listops.draw_short_trees(3, count=600, seed=0, max_length=500)


# --- Official files


@pytest.fixture
def official(tmp_path):
    """A folder of three small official files, and the task they were written from."""
    generated = data.load(CONFIG)
    folder = tmp_path / "listops-1000"
    folder.mkdir()
    for split, name in listops.OFFICIAL_FILES.items():
        write_tsv(folder / name, generated.splits[split])
    return folder, generated


def load_files(folder, **changes):
    return data.load(dataclasses.replace(CONFIG, dir=str(folder), **{"examples": 0, **changes}))


def test_official_files_round_trip(official):
    folder, generated = official
    assert (folder / "basic_val.tsv").read_bytes().startswith(b"Source\tTarget\r\n( ( ")
    read = load_files(folder)
    assert read.sha256 == generated.sha256
    for name, split in read.splits.items():
        ours = generated.splits[name]
        np.testing.assert_array_equal(split.sequences.tokens, ours.sequences.tokens)
        np.testing.assert_array_equal(split.sequences.offsets, ours.sequences.offsets)
        np.testing.assert_array_equal(split.labels, ours.labels)


def test_examples_limits_the_official_files(official):
    folder, _ = official
    for examples in (0, 7):  # the full files are prepared already
        read = load_files(folder, examples=examples, source="files")
        assert [len(split) for split in read.splits.values()] == [examples or 20] * 3


def test_a_changed_file_is_prepared_again(official):
    folder, _ = official
    before = load_files(folder)
    path = folder / "basic_test.tsv"
    header, first, second, *rest = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([header, second, first, *rest]))  # of the same size
    assert load_files(folder).sha256 != before.sha256


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"( ( [MAX 1 ) ] )", r"expected 2 columns \(Source and Target\), found 1"),
        (b"1\t1\t1", r"expected 2 columns \(Source and Target\), found 3"),
        (b"", "expected 2 columns"),
        (b"1\t", "expected a label from 0 to 9, found ''"),
        (b"1\t10", "expected a label from 0 to 9, found '10'"),
        (b"1\t-1", "expected a label from 0 to 9, found '-1'"),
        (b"( ( [MAX 1 ) ] )\tX", "expected a label from 0 to 9, found 'X'"),
        (b"( ( [AVG 1 ) ] )\t1", r"Token 1 is '\[AVG'"),
        (b"\t1", "The expression is empty"),
        (b"( ( ( [MAX 1 ) 7 ) ] )\t1", "the label is 1, but the value of the expression is 7"),
        (b"( ( [MAX 1 ) 7 )\t7", r"\[MAX at token 1 is never closed"),
        (b"( ( [MAX \xff ) ] )\t1", "byte 10 is not valid UTF-8"),
    ],
)
def test_error_names_a_malformed_line(official, line, sentence):
    folder, _ = official
    path = folder / "basic_train.tsv"
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([*lines[:5], line, *lines[5:]]))
    before = data_folders()
    with pytest.raises(ValueError, match=rf"basic_train\.tsv, line 6: {sentence}"):
        load_files(folder)
    assert data_folders() == before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"basic_val\.tsv, line 1: expected the header"),
        (b"1\t1\n", r"basic_val\.tsv, line 1: expected the header"),
        (b"\xef\xbb\xbfSource\tTarget\n", r"basic_val\.tsv, line 1: expected the header"),
        (b"Source\tTarget\n", r"basic_val\.tsv contains a header but no examples"),
    ],
)
def test_rejects_a_file_without_header_or_examples(official, content, sentence):
    folder, _ = official
    (folder / "basic_val.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        load_files(folder)


def test_error_about_missing_files_says_what_to_do(tmp_path):
    (tmp_path / "basic_val.tsv").touch()
    with pytest.raises(
        FileNotFoundError,
        match=r"no basic_train\.tsv, basic_test\.tsv under .*leave it empty to generate",
    ):
        load_files(tmp_path)


def test_short_task_has_its_own_lengths_and_name():
    task = listops.load_short(
        data.DataConfig(task="listops-short", max_len=512, examples=50, workers=1)
    )
    lengths = np.diff(task.splits["train"].sequences.offsets)
    assert task.name == "listops-short"
    assert lengths.min() > 100
    assert lengths.max() < 500
    for row in range(50):
        tokens, label = task.splits["train"][row]
        assert listops.evaluate(task.decode(tokens)) == label


def test_short_task_rejects_official_files(tmp_path):
    with pytest.raises(ValueError, match="can only be generated"):
        listops.load_short(data.DataConfig(task="listops-short", max_len=512, dir=str(tmp_path)))
