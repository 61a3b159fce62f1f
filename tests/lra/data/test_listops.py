"""ListOps: expressions, the prepared task and the official files."""

import dataclasses
import hashlib
import itertools
import sys

import numpy as np
import pytest

from lra import data
from lra.data import listops
from tests.lra.data import fakes
from tests.lra.data.fakes import official_text

CONFIG = data.DataConfig(task="listops", examples=20, max_len=2048, workers=1)

# (text, value). OFFICIAL has the official spelling of some of them.
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
OFFICIAL = {
    "7": "7",
    "[MIN 3 ]": "( ( [MIN 3 ) ] )",
    "[MAX 2 9 [MIN 4 7 ] 0 ]": "( ( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )",
}


# --- Expressions


@pytest.mark.parametrize(("text", "value"), EXPRESSIONS.items())
def test_evaluates_expressions_in_any_spelling_and_white_space(text, value):
    assert listops.evaluate(text) == value
    assert listops.evaluate(text.replace("]", "X")) == value
    assert listops.evaluate(text.replace(" ", "\n\t ") + " ") == value
    assert listops.evaluate(text.replace(" ]", "]").replace(" [", "[")) == value
    official = official_text(listops.encode(text))
    assert official == OFFICIAL.get(text, official)
    assert listops.evaluate(official) == value


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (" ( ) ", "empty"),
        ("[MAX 1 [SM 2 ]", r"\[MAX at token 1 .* closed"),
        ("[MAX 1 [SM ] ]", r"\[SM at token 3 .* arguments"),
        ("]", "Token 1"),
        ("[MAX 1 ] ]", r"token 4, '\]'"),
        ("1 2", "token 2, '2'"),
        ("[MAX 1 12 ]", "Token 3 is '12'"),
        ("[MAX1 2 ]", r"Token 1 is '\[MAX1'"),
        ("[MAX <pad> ]", "Token 2 is '<pad>'"),
        ("[max 1 ]", r"Token 1 is '\[max'"),
        ("( ( [MAX 1 ) ]", r"2 '\(' but 1 '\)'"),
        (") [MAX 1 2 ] (", r"'\)' before its '\('"),
        ("( ) [MAX 1 2 ]", "empty pair"),
    ],
)
def test_rejects_a_malformed_expression(text, word):
    with pytest.raises(ValueError, match=word):
        listops.evaluate(text)


def test_evaluates_deeply_nested_trees():
    depth = 5 * sys.getrecursionlimit()
    text = "[MAX " * depth + "3" + " ]" * depth
    assert listops.evaluate(text) == 3
    assert listops.evaluate(official_text(listops.encode(text))) == 3


def test_decode_inverts_encode_and_drops_padding():
    text = "[MAX 2 9 [MIN 4 7 ] 0 ]"
    tokens = listops.encode(text)
    assert tokens.dtype == np.uint8
    assert listops.decode(tokens) == text
    assert listops.decode(np.pad(tokens.astype(np.int32), (0, 5))) == text


# --- The task


def test_prepared_task_contains_the_generated_trees():
    """Golden: another hash means other data than those of the stored results."""
    task = data.load(CONFIG)
    assert [len(split) for split in task.splits.values()] == [20, 20, 20]
    examples = [example for split in task.splits.values() for example in split]
    trees = listops.generate(60, seed=0, num_processes=1, min_length=500, max_length=2000)
    assert [(bytes(tokens.tolist()), label) for tokens, label in examples] == list(trees)
    tokens, label = task.splits["test"][3]
    assert listops.evaluate(task.decode(tokens)) == label
    assert task.sha256 == "748f5d55aaa40aecd7d657a729a4c1292dfbf5c45cdc46a0f7937e8aa00d1b49"


@pytest.mark.slow(minutes=1)
def test_full_data_never_change():
    task = data.load(data.DataConfig(task="listops", max_len=2048))
    assert [len(split) for split in task.splits.values()] == [96_000, 2_000, 2_000]
    assert task.sha256 == "99ad845103d02e2eda92759e0244a3878e397eeac07e93a13cbd2b0864133eaa"


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


def test_the_trees_of_a_curriculum_grow_and_never_change():
    """Six stages: at least half of the trees have the lengths of their stage, and none are longer.

    Golden: another hash means other trees than those of the stored results.
    """
    content = hashlib.sha256()
    for tree in short_trees(60):
        content.update(tree.tokens + bytes([tree.label]))
    assert content.hexdigest() == "ef46b20a68f96f432a0016386931954545e058aee4eba5d0bd778441f7faee46"
    lengths = np.array([len(tree.tokens) for tree in short_trees(3_000)])
    for stage, (start, stop) in enumerate(itertools.pairwise((4, 16, 32, 64, 128, 256, 500))):
        own = lengths[500 * stage : 500 * (stage + 1)]
        assert start < own.max() < stop
        assert abs(np.mean(own >= start) - (0.5 + 0.5 / (stage + 1))) < 0.05
        assert abs(np.mean(own < 16) - (0.5 / (stage + 1) if stage else 1)) < 0.05


def test_a_curriculum_depends_on_the_seed_but_not_on_workers():
    def trees(**changes):
        config = dataclasses.replace(CONFIG, examples=300, curriculum=300, **changes)
        return [
            (bytes(tokens.tolist()), label)
            for tokens, label in data.load(config).open_curriculum()[0]
        ]

    assert trees() == trees(workers=2) == short_trees(300)
    assert trees(seed=1) == short_trees(300, seed=1) != short_trees(300)
    assert not listops.draw_short_trees(2, count=300, seed=0, max_length=500)


# --- Official files and short trees


def test_examples_limits_the_official_files(tmp_path):
    folder = fakes.write_folder(tmp_path / "listops-1000", fakes.files("listops"))
    assert (folder / "basic_val.tsv").read_bytes().startswith(b"Source\tTarget\r\n( ( ")
    task = fakes.load("listops", folder, examples=7, source="files")
    assert [len(split) for split in task.splits.values()] == [7] * 3


def test_short_task_has_its_own_lengths_and_no_files(tmp_path):
    config = data.DataConfig(task="listops-short", max_len=512, examples=50, workers=1)
    task = data.load(config)
    lengths = task.splits["train"].lengths
    assert task.name == "listops-short"
    assert 100 < lengths.min() < lengths.max() < 500
    for tokens, label in task.splits["train"]:
        assert listops.evaluate(task.decode(tokens)) == label
    with pytest.raises(ValueError, match=r"data\.dir"):
        data.load(dataclasses.replace(config, dir=str(tmp_path)))
