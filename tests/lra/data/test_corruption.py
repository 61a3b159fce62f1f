"""Damaged files: every reader names the file in one sentence, and leaves no prepared data."""

import io

import pytest
from PIL import Image

from tests.helpers import data_folders
from tests.lra.data import fakes


def lines_with(number, line):
    """Inserts a line."""

    def change(content):
        lines = content.splitlines(keepends=True)
        return b"".join([*lines[: number - 1], line + b"\n", *lines[number - 1 :]])

    return change


def replaced(number, old, new):
    """Replaces text in a line."""

    def change(content):
        lines = content.splitlines(keepends=True)
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
        return b"".join(lines)

    return change


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


def png(mode, side):
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, "PNG")
    return file.getvalue()


def flipped(position, value):
    return lambda content: content[:position] + bytes([value]) + content[position + 1 :]


TREES, PAIRS, ROWS, IMAGE = (
    "basic_train.tsv",
    "new_aan_pairs.eval.tsv",
    "metadata/10.npy",
    "imgs/2/sample_3.png",
)

# Task, file, its new content (None: deleted, or a function of the content), a word of the error.
DAMAGES = [
    ("text", "train/pos/7_9.txt", None, "19 pos"),
    ("text", "test/neg/0_2.txt", None, "19 neg"),
    ("text", "test/pos/99_9.txt", b"More.", "21 pos"),
    ("text", "train/neg/4_2.txt", b" Na\xefve.\n", r"train/neg/4_2\.txt of .* byte 4 is 0xef"),
    ("text", "train/neg/4_2.txt", b" \n", r"train/neg/4_2\.txt of .* is empty"),
    ("image", "data_batch_3.bin", None, r"data_batch_3\.bin"),
    ("image", "data_batch_2.bin", cut(1), r"data_batch_2\.bin.* 122,919 bytes"),
    ("image", "data_batch_2.bin", lambda content: content + b"0", r"data_batch_2\.bin"),
    ("image", "test_batch.bin", cut(3073), "in test"),
    ("image", "test_batch.bin", with_label(17, 0, 10), "in test"),
    ("image", "data_batch_1.bin", with_label(None, 3, 4), "in train.* 16 cat, 24 deer"),
    ("listops", TREES, lines_with(6, b"( ( [MAX 1 ) ] )"), "line 6: .* found 1"),
    ("listops", TREES, lines_with(6, b"1\t1\t1"), "line 6: .* found 3"),
    ("listops", TREES, lines_with(6, b""), "line 6: .* found 1"),
    ("listops", TREES, lines_with(6, b"1\t"), "line 6: .* label from 0 to 9, found ''"),
    ("listops", TREES, lines_with(6, b"1\t10"), "line 6: .* label from 0 to 9, found '10'"),
    ("listops", TREES, lines_with(6, b"( ( [AVG 1 ) ] )\t1"), r"line 6: Token 1 is '\[AVG'"),
    ("listops", TREES, lines_with(6, b"\t1"), "line 6: The expression is empty"),
    ("listops", TREES, lines_with(6, b"( ( ( [MAX 1 ) 7 ) ] )\t1"), "line 6: the label is 1, .* 7"),
    ("listops", TREES, lines_with(6, b"( ( [MAX 1 ) 7 )\t7"), "line 6: .* never closed"),
    ("listops", TREES, lines_with(6, b"( ( [MAX \xff ) ] )\t1"), "line 6: .* position 9"),
    ("listops", TREES, lines_with(6, b"Source\tTarget"), "line 6: "),
    ("listops", "basic_val.tsv", b"", r"basic_val\.tsv has no examples"),
    ("listops", "basic_val.tsv", b"Source\tTarget\n", r"basic_val\.tsv has no examples"),
    ("listops", "basic_val.tsv", b"1\t1\n", "line 1: expected the header"),
    ("listops", "basic_val.tsv", b"\xef\xbb\xbfSource\tTarget\n", "line 1: expected the header"),
    ("listops", "basic_val.tsv", None, r"no basic_val\.tsv in"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\tone"), "line 5: .* found 4"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\tone\ttwo\tthree"), "line 5: .* found 6"),
    ("retrieval", PAIRS, lines_with(5, b""), "line 5: .* found 1"),
    ("retrieval", PAIRS, lines_with(5, b"2.0\tA\tB\tone\ttwo"), "line 5: .* label .* '2.0'"),
    ("retrieval", PAIRS, lines_with(5, b"\tA\tB\tone\ttwo"), "line 5: .* label .* ''"),
    ("retrieval", PAIRS, lambda content: b"\xef\xbb\xbf" + content, "line 1: .* label"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\t\ttwo"), "line 5: text1 is empty"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\tone\t"), "line 5: text2 is empty"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\tone\ttw\xff"), "line 5: .* position 2"),
    ("retrieval", PAIRS, lines_with(5, b"1.0\tA\tB\tnaiv\xc3\ttwo"), "line 5: .* position 4"),
    ("retrieval", PAIRS, lambda content: content[: content.rindex(b"\t")], "line 13: .* found 4"),
    ("retrieval", PAIRS, b"", "has no examples"),
    ("retrieval", PAIRS, None, r"no new_aan_pairs\.eval\.tsv in"),
    ("pathfinder32-easy", ROWS, lambda content: content[:22], "line 1: .* at least 4 .* found 2"),
    ("pathfinder32-easy", ROWS, replaced(2, b" 14 ", b" 14 3 "), "line 2: the label .* '3'"),
    ("pathfinder32-easy", ROWS, replaced(4, b"sample", b"s\xe4mple"), "line 4: .* position 9"),
    (
        "pathfinder32-easy",
        ROWS,
        replaced(2, b"sample_14", b"sample_13"),
        r"_13\.png, named in .* twice",
    ),
    ("pathfinder32-easy", ROWS, replaced(2, b"_14", b"_99"), r"_99\.png, named in .* is missing"),
    ("pathfinder32-easy", ROWS, b"", "has no examples"),
    ("pathfinder32-easy", ROWS, b"\x93NUMPY\x01\x00v\x00{'descr': '<f8'}\n", "line 1: .* binary"),
    ("pathfinder32-easy", ROWS, b"../secret sample_3.png 3 1\n", "must be in the folder"),
    ("pathfinder32-easy", IMAGE, None, r"sample_3\.png, named in .* is missing"),
    ("pathfinder32-easy", IMAGE, lambda content: content[:70], r"sample_3\.png is corrupt"),
    (
        "pathfinder32-easy",
        IMAGE,
        flipped(11, 7),
        r"sample_3\.png is corrupt",
    ),  # length of the header
    ("pathfinder32-easy", IMAGE, png("L", 31), "has 31 × 31 pixels"),
    ("pathfinder32-easy", IMAGE, png("RGB", 32), "of mode RGB"),
    ("pathfinder32-easy", IMAGE, png("P", 32), "of mode P"),
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
    task, folder = "pathfinder32-easy", tmp_path / "pathfinder32/curv_baseline"
    fakes.write_folder(folder, fakes.files(task))
    (folder / "metadata/2.npy").unlink()
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    (folder / ROWS).write_bytes(b"".join(lines[:9]))
    with pytest.raises(ValueError, match="at least 10"):
        fakes.load(task, tmp_path)
    (folder / ROWS).unlink()
    with pytest.raises(FileNotFoundError, match=r"no \.npy in .*metadata"):
        fakes.load(task, tmp_path)
    assert data_folders() == []


def test_a_truncated_archive_leaves_no_data(tmp_path):
    path = tmp_path / "aclImdb_v1.tar.gz"
    fakes.write_archive(path, fakes.files("text"), "aclImdb/")
    path.write_bytes(path.read_bytes()[:-2_000])
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz is truncated or corrupt"):
        fakes.load("text", tmp_path)
    assert data_folders() == []


def test_a_disk_that_is_too_small_is_reported_before_images_are_drawn(monkeypatch):
    import shutil

    from lra.data import pathfinder

    usage = shutil.disk_usage("/")._replace(free=2**10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(pathfinder.parallel, "in_order", None)
    with pytest.raises(OSError, match=r"needs to write to .*0 MiB are needed.*Free some space"):
        fakes.load("pathfinder32-easy", "", examples=7)
    assert data_folders() == []
