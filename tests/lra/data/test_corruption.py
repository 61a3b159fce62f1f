"""Damaged files: every reader names the file in one sentence, and leaves no prepared data."""

import shutil

import numpy as np
import pytest

from lra.data import pathfinder
from tests.helpers import data_folders
from tests.lra.data import fakes


def edited(number, edit):
    """Applies a function to a line."""

    def change(content):
        lines = content.splitlines(keepends=True)
        lines[number - 1] = edit(lines[number - 1])
        return b"".join(lines)

    return change


def inserted(number, new):
    return edited(number, lambda line: new + b"\n" + line)


def replaced(number, old, new):
    return edited(number, lambda line: line.replace(old, new, 1))


def cut(count):
    return lambda content: content[:-count]


def with_label(row, old, new):
    """Changes a label of CIFAR-10, or all labels `old` if the row is None."""

    def change(content):
        records = fakes.records(content)
        rows = records[:, 0] == old if row is None else [row]
        records[rows, 0] = new
        return records.tobytes()

    return change


def flipped(position, value):
    return lambda content: content[:position] + bytes([value]) + content[position + 1 :]


TREES, PAIRS = "basic_train.tsv", "new_aan_pairs.eval.tsv"
ROWS, IMAGE = "metadata/10.npy", "imgs/2/sample_3.png"
EASY = "pathfinder32-easy"

# Task, file, its new content (None: deleted, or a function of the content), a word of the error.
DAMAGES = [
    ("text", "train/pos/7_9.txt", None, "19 pos"),
    ("text", "train/neg/4_2.txt", b" Na\xefve.\n", r"4_2\.txt of .* byte 4"),
    ("text", "train/neg/4_2.txt", b" \n", r"4_2\.txt of .* empty"),
    ("image", "data_batch_3.bin", None, r"data_batch_3\.bin"),
    ("image", "data_batch_2.bin", cut(1), r"data_batch_2\.bin.* 122,919"),
    ("image", "test_batch.bin", cut(3073), "in test"),
    ("image", "test_batch.bin", with_label(17, 0, 10), "in test"),
    ("image", "data_batch_1.bin", with_label(None, 3, 4), "in train.* 16 cat, 24 deer"),
    ("listops", TREES, inserted(6, b"1\t1\t1"), "line 6: .* found 3"),
    ("listops", TREES, inserted(6, b"1\t10"), "line 6: .* '10'"),
    ("listops", TREES, inserted(6, b"( ( [AVG 1 ) ] )\t1"), r"line 6: .*'\[AVG'"),
    ("listops", TREES, inserted(6, b"( ( ( [MAX 1 ) 7 ) ] )\t1"), "line 6: .* 1, .* 7"),
    ("listops", TREES, inserted(6, b"( ( [MAX \xff ) ] )\t1"), "line 6: .* position 9"),
    ("listops", "basic_val.tsv", b"", r"basic_val\.tsv has no examples"),
    ("listops", "basic_val.tsv", b"Source\tTarget\n", r"basic_val\.tsv has no examples"),
    ("listops", "basic_val.tsv", b"1\t1\n", "line 1: .* header"),
    ("listops", "basic_val.tsv", None, r"basic_val\.tsv"),
    ("retrieval", PAIRS, inserted(5, b"1.0\tA\tB\tone"), "line 5: .* found 4"),
    ("retrieval", PAIRS, inserted(5, b"2.0\tA\tB\tone\ttwo"), "line 5: .* '2.0'"),
    ("retrieval", PAIRS, inserted(5, b"1.0\tA\tB\t\ttwo"), "line 5: text1"),
    ("retrieval", PAIRS, inserted(5, b"1.0\tA\tB\tnaiv\xc3\ttwo"), "line 5: .* position 4"),
    (EASY, ROWS, lambda content: content[:22], "line 1: .* found 2"),
    (EASY, ROWS, replaced(2, b" 14 ", b" 14 3 "), "line 2: .* '3'"),
    (EASY, ROWS, replaced(4, b"sample", b"s\xe4mple"), "line 4: .* position 9"),
    (EASY, ROWS, replaced(2, b"sample_14", b"sample_13"), r"line \d+: .*_13\.png occurs twice"),
    (EASY, ROWS, replaced(2, b"_14", b"_99"), r"line 2: .*_99\.png is missing"),
    (EASY, ROWS, b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}\n", "line 1: .* binary"),
    (EASY, ROWS, b"../secret sample_3.png 3 1\n", "in the folder"),
    (EASY, IMAGE, lambda content: content[:70], r"sample_3\.png is corrupt"),
    (EASY, IMAGE, flipped(11, 7), r"sample_3\.png is corrupt"),  # length of the header
    (EASY, IMAGE, fakes.png(np.zeros((31, 31), np.uint8)), "31 × 31"),
    (EASY, IMAGE, fakes.png(np.zeros((32, 32, 3), np.uint8)), "RGB"),
]


@pytest.mark.parametrize(("task", "file", "damage", "word"), DAMAGES)
def test_a_damaged_file_is_named_and_leaves_no_data(task, file, damage, word, tmp_path):
    folder = fakes.write_folder(tmp_path / fakes.FOLDERS[task], fakes.files(task))
    path = folder / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()) if callable(damage) else damage)
    with pytest.raises((ValueError, FileNotFoundError), match=word) as error:
        fakes.load(task, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert data_folders() == []


def test_a_release_without_metadata_or_with_few_images_is_an_error(tmp_path):
    folder = fakes.write_folder(tmp_path / fakes.FOLDERS[EASY], fakes.files(EASY))
    (folder / "metadata/2.npy").unlink()
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    (folder / ROWS).write_bytes(b"".join(lines[:9]))
    with pytest.raises(ValueError, match="at least 10"):
        fakes.load(EASY, tmp_path)
    (folder / ROWS).unlink()
    with pytest.raises(FileNotFoundError, match=r"no \.npy in .*metadata"):
        fakes.load(EASY, tmp_path)
    assert data_folders() == []


def test_a_disk_that_is_too_small_is_reported_before_images_are_drawn(monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=2**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(pathfinder.parallel, "in_order", None)
    with pytest.raises(OSError, match="0 MiB are needed"):
        fakes.load(EASY, "", examples=7)
    assert data_folders() == []
