"""GLUE's tasks and IMDb: read from every layout, prepared once, with the content of their files."""

import dataclasses
import gzip
import itertools
import re

import numpy as np
import pytest

from language.finetune import glue
from language.finetune.data import load
from language.finetune.glue import GlueConfig
from language.finetune.glue_tasks import TASKS
from tests.language.finetune.glue_fakes import (
    COUNTS,
    HEADERS,
    Words,
    archive,
    label,
    text,
    write_reviews,
    write_task,
)


def load_task(name, folder, tokenizer=None, **values):
    return load(GlueConfig(task=name, dir=str(folder), **values), tokenizer or Words())


def read(name, folder, seed=0):
    return glue.read(TASKS[name], glue.find(TASKS[name], folder), seed)[0]


def contents(splits):
    """Texts, labels and ids of all rows, without their places."""
    return {name: [(row.texts, row.label, row.id) for row in rows] for name, rows in splits.items()}


@pytest.mark.parametrize("name", HEADERS)
def test_every_task_becomes_batches_of_its_texts_and_labels(name, tmp_path, monkeypatch):
    """Tokenized in several pieces, so that their order matters."""
    monkeypatch.setattr("language.tokenizer.BATCH_CHARACTERS", 30)
    task, tokenizer = TASKS[name], Words()
    write_task(tmp_path, name)
    data = load_task(name, tmp_path, max_len=64)
    assert data.task is task
    assert list(data.splits) == list(task.files)
    for split, encoded in data.splits.items():
        count = COUNTS.get(split.split("_")[0], 5)
        batch = encoded.batch(np.arange(count), 64)
        assert encoded.ids.tolist() == [str(row) for row in range(count)]
        assert (not encoded.is_labeled) == split.startswith("test")
        assert batch["labels"].dtype == (np.float32 if task.is_regression else np.int32)
        for row in range(count):
            if encoded.is_labeled:
                assert batch["labels"][row] == task.dtype(task.number(label(task, row), ""))
            expected = [tokenizer.cls_id]
            for part in range(len(task.texts)):
                expected += [*tokenizer.encode([text(split, row, part)])[0], tokenizer.sep_id]
            assert batch["inputs"][row][batch["mask"][row]].tolist() == expected


def test_prepares_data_once_and_again_for_other_inputs(tmp_path, monkeypatch):
    folder = write_task(tmp_path, "rte")
    reads, original = [], glue.read
    monkeypatch.setattr(glue, "read", lambda *given: reads.append(1) or original(*given))
    first = load_task("rte", tmp_path)
    assert load_task("rte", folder, max_len=7, examples=3, seed=5).sha256 == first.sha256
    assert len(reads) == 1
    load_task("rte", folder, dataclasses.replace(Words(), sha256="others"))
    assert len(reads) == 2
    with (folder / "dev.tsv").open("a") as file:
        file.write("7\tone more\tpair\tentailment\n")
    assert load_task("rte", tmp_path).sha256 != first.sha256
    assert len(reads) == 3


def test_examples_samples_only_the_training_split(tmp_path, caplog):
    write_task(tmp_path, "mnli")
    whole = load_task("mnli", tmp_path)
    few = load_task("mnli", tmp_path, examples=9)
    assert np.bincount(few.splits["train"].labels).tolist() == [3, 3, 3]
    assert set(few.splits["train"].ids) < set(whole.splits["train"].ids)
    for split in ("valid", "valid_mismatched", "test"):
        assert len(few.splits[split]) == len(whole.splits[split])
    assert (few.is_sample, whole.is_sample) == (True, False)
    assert not load_task("mnli", tmp_path, examples=31).is_sample
    assert "MNLI has 31 instead of 392,702 examples for train" in caplog.text


def test_notes_count_different_shared_and_skipped_examples(tmp_path):
    folder = write_task(tmp_path, "qqp")
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    rows = ["0\t1\t2\tA b\tC d\t0", "1\t1\t2\tC d\tA b\t1", "torn", "3\t1\t2\tE\tF\t0"]
    (folder / "train.tsv").write_text(header + "\n".join(rows))
    (folder / "dev.tsv").write_text(header + "0\t1\t2\tF\tE\t1\n1\t1\t2\ta b\tC d\t0\n")
    assert glue.read(TASKS["qqp"], glue.find(TASKS["qqp"], tmp_path))[1] == {
        "different": {"train": 2, "valid": 2, "test": 5},
        "shared": {"train/valid": 1, "train/test": 0, "valid/test": 0},
        "left_out": {"train": [4]},
    }


READ = [
    # Quotation marks are text, and marks that Unicode lists as line breaks are too.
    ("sst2", "train", b'\xef\xbb\xbfsentence\tlabel\r\n "a film \t1\r\na\x0bb\xc2\x85c"\t0\r\n',
     [(('"a film',), "1", ""), (('a\x0bb\x85c"',), "0", "")]),
    ("cola", "valid", b"a\t1\t\tHe went.\nb\t0\t*\tHe goed.",
     [(("He went.",), "1", ""), (("He goed.",), "0", "")]),
    # Ids are those of the file, and no row of a test file is skipped.
    ("qqp", "test", b"id\tquestion1\tquestion2\n17\tWhy?\tWhy not?\n5\tWho?\t\n",
     [(("Why?", "Why not?"), None, "17"), (("Who?", ""), None, "5")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "content", "rows"), READ)
def test_tables_are_read_as_in_the_release(name, split, content, rows, tmp_path):
    (write_task(tmp_path, name) / TASKS[name].files[split]).write_bytes(content)
    assert contents(read(name, tmp_path))[split] == rows


def test_the_diagnostic_set_may_be_missing(tmp_path):
    folder = write_task(tmp_path, "mnli")
    (tmp_path / "diagnostic" / "diagnostic.tsv").unlink()
    assert list(read("mnli", folder)) == list(TASKS["mnli"].files)[:-1]


@pytest.mark.parametrize(("name", "word"), [("sst2", "gluebench"), ("mrpc", "download_glue_data")])
def test_a_missing_table_is_named_with_its_origin(tmp_path, name, word):
    (write_task(tmp_path, name) / "dev.tsv").unlink()
    with pytest.raises(FileNotFoundError, match=rf"dev\.tsv is missing .*{word}"):
        read(name, tmp_path)


def test_torn_rows_of_qqp_are_skipped_up_to_the_number_of_the_release(tmp_path, caplog):
    folder = write_task(tmp_path, "qqp")
    whole = contents(read("qqp", tmp_path))
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[3:3] = ["7\t7\t7\t Why, then", "7\t7\t7\tWhy?\t \t0"]
    (folder / "train.tsv").write_text("\n".join(lines))
    assert contents(read("qqp", tmp_path)) == whole
    assert "skipped 2 rows that are empty or split" in caplog.text
    content = (folder / "dev.tsv").read_text()
    for row, words in (("0\t1\t2\tWhy?\t\t0\n", "an empty text"), ("torn\n", "1 columns instead")):
        (folder / "dev.tsv").write_text(content + row * 100)
        assert len(read("qqp", tmp_path)["valid"]) == COUNTS["valid"]
        (folder / "dev.tsv").write_text(content + row * 101)
        with pytest.raises(ValueError, match=f"dev.tsv, line 109, has {words}"):
            read("qqp", tmp_path)


RTE = b"index\tsentence1\tsentence2\tlabel\n"
STSB = b"sentence1\tsentence2\tscore\n"
ERRORS = [
    ("rte", "train.tsv", RTE + b"0\ta\tb\n", ", line 2, has 3 columns"),
    ("rte", "dev.tsv", RTE + b"0\ta\tb\t1\n", ", line 2: the label '1'"),
    ("rte", "train.tsv", RTE + b"0\ta\t \tentailment\n", ", line 2, has an empty text"),
    ("rte", "test.tsv", RTE + b"0\ta\tb\tx\n\n", ", line 3, has 0 columns"),
    ("rte", "train.tsv", RTE + b"0\ta\t\xff\tx\n", " is not UTF-8"),
    ("rte", "train.tsv", b"a\tb\n", ", line 1: RTE needs one column 'sentence1'"),
    ("rte", "train.tsv", b"", ", line 1: RTE needs one column 'sentence1'"),
    ("rte", "train.tsv", RTE, " has no rows"),
    ("cola", "train.tsv", b"sentence\tlabel\n", ", line 1, has 2 columns"),
    ("qqp", "test.tsv", b"id\tquestion1\tquestion2\n0\tWhy?\n", ", line 2, has 2 columns"),
    ("stsb", "dev.tsv", STSB + b"a\tb\t5.1\n", ", line 2: the label must be a number from 0 to 5"),
    ("stsb", "dev.tsv", STSB + b"a\tb\tnan\n", ", line 2: the label must"),
    ("stsb", "dev.tsv", STSB + b"a\tb\t0_1\n", ", line 2: the label must"),
    ("sst2", "dev.tsv", b"sentence\tlabel\tlabel\na\t1\t0\n", ", line 1: SST-2 needs one"),
]


def numbers(task, folder):
    """The labels of all rows as numbers."""
    rows = itertools.chain(*read(task.name, folder).values())
    return [task.number(row.label, row.where) for row in rows if row.label is not None]


@pytest.mark.parametrize(("name", "file", "content", "words"), ERRORS)
def test_error_names_the_line_of_an_invalid_row(name, file, content, words, tmp_path):
    path, task = write_task(tmp_path, name) / file, TASKS[name]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{path}{words}")):
        numbers(task, tmp_path)


@pytest.fixture
def reviews(tmp_path):
    return write_reviews(tmp_path / "raw")


def test_reviews_are_the_same_from_a_folder_its_parent_and_an_archive_read_once(
    reviews, tmp_path, monkeypatch
):
    splits = contents(read("imdb", reviews))
    (tmp_path / "packed").mkdir()
    packed = archive(reviews, tmp_path / "packed" / "aclImdb_v1.tar.gz")
    opened, original = [], gzip.open
    monkeypatch.setattr(gzip, "open", lambda *given: opened.append(1) or original(*given))
    for place in (reviews.parent, packed, packed.parent):
        assert contents(read("imdb", place)) == splits
    assert len(opened) == 2
    rows = list(itertools.chain(*splits.values()))
    assert len(rows) == 80
    for texts, name, id in rows:
        assert name == id.split("/")[1]
        assert texts[0] == (reviews / f"{id}.txt").read_text(encoding="utf-8").strip()
    labels = [name for _, name, _ in splits["test"]]  # the files are sorted by class
    assert sorted(labels) != labels
    assert len(set(labels[:8])) == 2


def test_a_tenth_of_each_class_of_reviews_is_held_out_by_seed(reviews):
    splits = read("imdb", reviews)
    sizes = {name: len(rows) for name, rows in splits.items()}
    assert sizes == {"train": 36, "valid": 4, "test": 40}
    assert sorted(row.label for row in splits["valid"]) == ["neg", "neg", "pos", "pos"]
    held, others = ({row.id for row in read("imdb", reviews, seed)["valid"]} for seed in (0, 1))
    assert held != others
    assert not held & {row.id for row in splits["train"]}


def test_error_names_an_invalid_review(reviews):
    file = reviews / "train" / "pos" / "3_9.txt"
    for content, words in ((b" \n", "is empty"), (b"caf\xe9", "is not UTF-8 text: byte 4 is 0xe9")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"train/pos/3_9.txt of {reviews} {words}"):
            read("imdb", reviews)


@pytest.mark.parametrize(("subfolder", "kept"), [("test/neg", 0), ("train/pos", 1)])
def test_error_names_a_class_without_reviews(reviews, subfolder, kept):
    for file in sorted((reviews / subfolder).iterdir())[kept:]:
        file.unlink()
    with pytest.raises(ValueError, match=f"has too few reviews in {subfolder}: {kept}"):
        read("imdb", reviews)
