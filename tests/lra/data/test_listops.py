import collections
import dataclasses
import hashlib
import itertools
import logging
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest

import lra
from lra import data
from lra.data import listops
from tests.lra.data.fakes import official_text, write_tsv

CONFIG = data.DataConfig(task="listops", examples=20, max_len=2048, workers=1)

# What the official algorithm gave, 4,000 accepted trees: per cent of the labels 0 to 9, and lengths.
OFFICIAL_TREES = 4_000
OFFICIAL_LABELS = [16.6, 9.0, 6.9, 7.5, 9.5, 9.0, 8.2, 7.5, 8.7, 17.3]
OFFICIAL_QUANTILES = {0.05: 543, 0.5: 966, 0.95: 1799}
OFFICIAL_MEANS = {"tokens": 1043, "operators": 148, "tries": 12.3}
DEVIATIONS = {"tokens": 394, "operators": 56, "tries": 11.8}  # of one tree, for the tolerances

# (text, value); the official spelling of some of them stands in OFFICIAL_TEXTS.
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


def recursive_value(words):
    """A second evaluator, straight from the definition: consumes words from the front."""
    word = next(words)
    if word.isdigit():
        return int(word)
    arguments = []
    while words.peek() != "]":
        arguments.append(recursive_value(words))
    next(words)
    return {
        "[MAX": max,
        "[MIN": min,
        "[MED": lambda values: int(statistics.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }[word](arguments)


class Words:
    def __init__(self, text):
        self.words = collections.deque(text.split())

    def __next__(self):
        return self.words.popleft()

    def peek(self):
        return self.words[0]


def chunks_of_trees(num_chunks):
    return [listops.generate_chunk(7, i, 500, 2000) for i in range(num_chunks)]


@pytest.fixture(scope="module")
def sample():
    """2,000 freshly generated trees of the official lengths, as chunks."""
    return chunks_of_trees(2_000 // listops.CHUNK_TREES)


def num_operators(tokens):
    return sum(11 <= token <= 14 for token in tokens)


def num_levels(tokens):
    """Levels of a tree: the digits of the deepest list stand one below it."""
    steps = [(11 <= token <= 14) - (token == listops.VOCAB["]"]) for token in tokens]
    return max(itertools.accumulate(steps)) + 1


def generate(num_trees, num_processes=1, seed=7, min_length=500, max_length=2000):
    return listops.generate(
        num_trees,
        seed=seed,
        min_length=min_length,
        max_length=max_length,
        num_processes=num_processes,
    )


def assert_official_statistics(chunks):
    """Every statistic within four standard errors of the difference of the two samples."""
    trees = [tree for chunk in chunks for tree in chunk.trees]
    scale = 4 * math.sqrt(1 / len(trees) + 1 / OFFICIAL_TREES)

    def assert_share(ours, official):
        assert abs(ours - official) < scale * math.sqrt(official * (1 - official))

    labels = np.bincount([tree.label for tree in trees], minlength=10) / len(trees)
    for ours, official in zip(labels, OFFICIAL_LABELS, strict=True):
        assert_share(ours, official / 100)

    lengths = np.array([len(tree.tokens) for tree in trees])
    assert lengths.min() > 500
    assert lengths.max() < 2000
    for share, length in OFFICIAL_QUANTILES.items():
        assert_share((lengths < length).mean(), share)

    means = {
        "tokens": lengths.mean(),
        "operators": np.mean([num_operators(tree.tokens) for tree in trees]),
        "tries": sum(chunk.num_tries for chunk in chunks) / len(trees),
    }
    for name, mean in means.items():
        assert abs(mean - OFFICIAL_MEANS[name]) < scale * DEVIATIONS[name], name


# --- Expressions


@pytest.mark.parametrize(("text", "value"), EXPRESSIONS.items())
def test_evaluate_gives_the_value(text, value):
    assert listops.evaluate(text) == value
    assert recursive_value(Words(text)) == value


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_spelling_and_white_space_do_not_matter(text):
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
    ],
)
def test_a_malformed_expression_is_one_clear_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        listops.evaluate(text)


def test_deep_nesting_needs_no_recursion():
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


def test_decode_turns_encode_around_and_drops_padding():
    text = "[MAX 2 9 [MIN 4 7 ] 0 ]"
    tokens = listops.encode(text)
    assert tokens.dtype == np.uint8
    assert listops.decode(tokens) == text
    assert listops.decode(np.pad(tokens.astype(np.int32), (0, 5))) == text


@pytest.mark.parametrize("text", OFFICIAL_TEXTS)
def test_official_text_is_left_nested_pairs(text):
    assert official_text(listops.encode(text)) == OFFICIAL_TEXTS[text]
    np.testing.assert_array_equal(listops.encode(OFFICIAL_TEXTS[text]), listops.encode(text))


def test_official_text_of_a_generated_tree_comes_back(sample):
    for tree in sample[0].trees[:50]:
        tokens = np.frombuffer(tree.tokens, np.uint8)
        text = official_text(tokens)
        np.testing.assert_array_equal(listops.encode(text), tokens)
        # A list of k arguments is k + 1 pairs: one for every argument and one for the bracket.
        num_nodes = sum(token != listops.VOCAB["]"] for token in tree.tokens)
        assert text.count("( ") == num_nodes - 1 + num_operators(tree.tokens)
        assert text.count(" )") == text.count("( ")


# --- The generator


def test_labels_are_the_values_of_their_trees(sample):
    for tree in sample[0].trees:
        text = listops.decode(np.frombuffer(tree.tokens, np.uint8))
        assert recursive_value(Words(text)) == tree.label
        assert listops.evaluate(text) == tree.label


def test_a_node_is_what_the_official_generator_makes_it():
    nodes = collections.Counter(kind[:2] for kind in listops._KINDS)
    total = len(listops._KINDS)
    assert total == 720
    for digit in "0123456789":
        assert nodes[0, bytes([listops.VOCAB[digit]])] / total == pytest.approx(0.75 / 10)
    for operator in listops.OPERATORS:
        for num_args in range(2, 11):
            share = nodes[num_args, bytes([listops.VOCAB[operator]])] / total
            assert share == pytest.approx(0.25 / 4 / 9)
    last = collections.Counter(kind[:2] for kind in listops._LAST_KINDS)
    assert sorted(last.values()) == [72] * 10
    assert all(num_args == 0 for num_args, _ in last)


def test_statistics_are_those_of_the_official_generator(sample):
    assert_official_statistics(sample)
    assert {num_levels(tree.tokens) for chunk in sample for tree in chunk.trees} == {10}


@pytest.mark.slow(minutes=0.5)
def test_statistics_of_a_large_sample_are_those_of_the_official_algorithm():
    """Against the official recursion itself, written down literally."""
    rng = random.Random(11)

    def draw(depth):
        if depth == 10 or rng.random() > 0.25:
            return rng.randint(0, 9), 1
        children = [draw(depth + 1) for _ in range(rng.randint(2, 10))]
        function = rng.choice(
            [min, max, lambda v: int(statistics.median(v)), lambda v: sum(v) % 10]
        )
        return function([value for value, _ in children]), 2 + sum(size for _, size in children)

    official = []
    while len(official) < 20_000:
        tree = draw(1)
        if 500 < tree[1] < 2000:
            official.append(tree)
    chunks = chunks_of_trees(20_000 // listops.CHUNK_TREES)
    assert_official_statistics(chunks)
    ours = [(tree.label, len(tree.tokens)) for chunk in chunks for tree in chunk.trees]
    ours_values, ours_lengths = np.array(ours).T
    official_values, official_lengths = np.array(official).T

    pairs = np.stack([np.bincount(v, minlength=10) for v in (ours_values, official_values)])
    chi_square = ((pairs[0] - pairs[1]) ** 2 / pairs.sum(axis=0)).sum()
    assert chi_square < 27.9  # one in a thousand at 9 degrees of freedom
    lengths = np.arange(500, 2001)
    shares = [
        np.searchsorted(np.sort(sizes), lengths) / len(sizes)
        for sizes in (ours_lengths, official_lengths)
    ]
    # Kolmogorov-Smirnov, one in a thousand.
    assert np.abs(shares[0] - shares[1]).max() < 1.95 * math.sqrt(2 / 20_000)


def test_trees_are_the_same_for_any_number_of_processes():
    num_trees = 3 * listops.CHUNK_TREES + 7
    alone = list(generate(num_trees, num_processes=1, min_length=20, max_length=60))
    assert alone == list(generate(num_trees, num_processes=2, min_length=20, max_length=60))
    assert len(alone) == num_trees


def test_another_seed_is_another_set():
    assert set(generate(50, seed=7)).isdisjoint(generate(50, seed=8))


def test_chunks_differ():
    first, second = (listops.generate_chunk(7, i, 20, 60).trees for i in range(2))
    assert len(set(first) & set(second)) < len(first) / 2


def test_no_tree_comes_twice():
    drawn = [tree for i in range(8) for tree in listops.generate_chunk(7, i, 3, 6).trees]
    assert len(set(drawn)) < len(drawn)  # so there is something to remove
    trees = list(generate(1_000, min_length=3, max_length=6))
    assert len(set(trees)) == 1_000
    assert trees == list(dict.fromkeys(drawn))[:1_000]  # the first one counts


def test_all_trees_of_one_token_are_the_ten_digits():
    trees = list(generate(10, min_length=0, max_length=3))
    assert sorted(tree.label for tree in trees) == list(range(10))
    with pytest.raises(ValueError, match=r"only 10 different trees .* 11 were asked for"):
        list(generate(11, min_length=0, max_length=3))


def test_lengths_that_no_tree_has_are_one_clear_sentence(monkeypatch):
    monkeypatch.setattr(listops, "MAX_TRIES_PER_TREE", 1_000)
    with pytest.raises(ValueError, match="hardly a tree with 1 < length < 4"):
        listops.generate_chunk(7, 0, 1, 4)


# --- The task


def test_a_prepared_task_holds_what_was_generated():
    task = data.load(CONFIG)
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 20,
        "valid": 20,
        "test": 20,
    }
    examples = [example for split in task.splits.values() for example in split]
    trees = list(generate(60, seed=0))
    assert [(bytes(tokens.tolist()), label) for tokens, label in examples] == trees
    assert task.name == "listops"
    tokens, label = task.splits["test"][3]
    assert listops.evaluate(task.decode(tokens)) == label


def test_the_official_sizes_are_the_default():
    assert listops.SIZES == {"train": 96_000, "valid": 2_000, "test": 2_000}


def test_generated_data_never_change():
    """Golden: another hash is other data, and every result on record would be of another set."""
    task = data.load(CONFIG)
    content = hashlib.sha256()
    for split in task.splits.values():
        for array in (split.sequences.tokens, split.sequences.offsets, split.labels):
            content.update(np.ascontiguousarray(array).tobytes())
    assert content.hexdigest() == "c922abd2233d8ae63cdd1b67308e1f9f2b634cf5473247400eefed701bd54e72"
    assert task.sha256 == "748f5d55aaa40aecd7d657a729a4c1292dfbf5c45cdc46a0f7937e8aa00d1b49"


@pytest.mark.slow(minutes=1)
def test_the_whole_set_never_changes():
    task = data.load(data.DataConfig(task="listops", max_len=2048))
    assert [len(split) for split in task.splits.values()] == [96_000, 2_000, 2_000]
    assert task.sha256 == "99ad845103d02e2eda92759e0244a3878e397eeac07e93a13cbd2b0864133eaa"


def test_preparing_is_announced_once(caplog):
    caplog.set_level(logging.INFO)
    data.load(CONFIG)
    data.load(CONFIG)
    (message,) = caplog.messages
    assert message.startswith("Preparing ListOps: 60 trees, seed 0, 1 processes; once, into ")
    assert pathlib.Path(message.split("into ")[1]).is_dir()


def test_seed_and_examples_make_other_data_and_workers_do_not():
    def sha256(**changes):
        return data.load(dataclasses.replace(CONFIG, **changes)).sha256

    assert len({sha256(), sha256(seed=1), sha256(examples=21), sha256(workers=2)}) == 3


def test_ctrl_c_ends_a_preparation_and_leaves_nothing_behind(tmp_path):
    script = (
        "from lra import data\n"
        "if __name__ == '__main__':\n"
        "    data.load(data.DataConfig(task='listops', max_len=2048, workers=2))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stderr=subprocess.PIPE,
        text=True,
        cwd=pathlib.Path(lra.__file__).parents[1],
        start_new_session=True,
    )
    folder = tmp_path / "cache" / "data"
    deadline = time.monotonic() + 20
    while not list(folder.glob("*.partial")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(1)  # until both processes are at work
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to parent and children
    _, errors = process.communicate(timeout=20)
    assert process.returncode != 0
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert [path for path in folder.iterdir() if path.is_dir()] == []


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


def test_examples_shorten_what_is_read(official):
    folder, _ = official
    for examples in (0, 7):  # in this order: the whole files are prepared already
        read = load_files(folder, examples=examples, source="files")
        assert [len(split) for split in read.splits.values()] == [examples or 20] * 3


def test_a_changed_file_is_prepared_anew(official):
    folder, _ = official
    before = load_files(folder)
    path = folder / "basic_test.tsv"
    path.write_bytes(path.read_bytes().replace(b" 3 ", b" 4 ", 1))  # of the same size
    assert load_files(folder).sha256 != before.sha256


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"( ( [MAX 1 ) ] )", "expected 2 columns, Source and Target, found 1"),
        (b"1\t1\t1", "expected 2 columns, Source and Target, found 3"),
        (b"", "expected 2 columns"),
        (b"1\t", "expected a label from 0 to 9, found ''"),
        (b"1\t10", "expected a label from 0 to 9, found '10'"),
        (b"1\t-1", "expected a label from 0 to 9, found '-1'"),
        (b"( ( [MAX 1 ) ] )\tX", "expected a label from 0 to 9, found 'X'"),
        (b"( ( [AVG 1 ) ] )\t1", r"Token 1 is '\[AVG'"),
        (b"\t1", "The expression is empty"),
        (b"( ( [MAX \xff ) ] )\t1", "byte 10 is not UTF-8 text"),
    ],
)
def test_a_malformed_line_is_named(official, line, sentence):
    folder, _ = official
    path = folder / "basic_train.tsv"
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([*lines[:5], line, *lines[5:]]))
    with pytest.raises(ValueError, match=rf"basic_train\.tsv, line 6: {sentence}"):
        load_files(folder)
    assert not list((folder.parent / "cache" / "data").glob("*.partial"))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"basic_val\.tsv, line 1: expected the header"),
        (b"1\t1\n", r"basic_val\.tsv, line 1: expected the header"),
        (b"Source\tTarget\n", r"basic_val\.tsv holds a header and no examples"),
    ],
)
def test_a_file_without_header_or_examples_is_refused(official, content, sentence):
    folder, _ = official
    (folder / "basic_val.tsv").write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        load_files(folder)


def test_missing_files_are_named_with_what_to_do(tmp_path):
    (tmp_path / "basic_val.tsv").touch()
    with pytest.raises(
        FileNotFoundError,
        match=r"no basic_train\.tsv, basic_test\.tsv under .*leave it empty to generate",
    ):
        load_files(tmp_path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"source": "tfds"}, "set data.source to auto, files or generated"),
        ({"source": "files"}, r"set --config\.data\.dir"),
        ({"source": "generated", "dir": "somewhere"}, "leave data.dir empty"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        data.load(dataclasses.replace(CONFIG, **changes))


def test_the_short_size_is_of_its_own_lengths_and_name():
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


def test_the_short_size_has_no_official_files(tmp_path):
    with pytest.raises(ValueError, match="generated only"):
        listops.load_short(data.DataConfig(task="listops-short", max_len=512, dir=str(tmp_path)))


@pytest.mark.slow(minutes=0.3)
def test_ten_thousand_generated_labels_are_what_evaluate_says():
    trees = listops.generate(10_000, seed=7, min_length=500, max_length=2000, num_processes=2)
    for tree in trees:
        tokens = np.frombuffer(tree.tokens, np.uint8)
        assert listops.evaluate(official_text(tokens)) == tree.label
