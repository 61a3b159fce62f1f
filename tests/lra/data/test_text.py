import dataclasses
import hashlib
import logging
import pathlib

import numpy as np
import pytest

from lra import data
from lra.data import text
from tests.helpers import data_folders
from tests.lra.data import fakes

SIZE = fakes.REVIEWS_PER_CLASS
CONFIG = data.DataConfig(task="text", max_len=4096)
PADDING = data.Padding(max_len=4096, padded_len=4099)


def load(dir, per_class=SIZE, **changes):
    return text.load(dataclasses.replace(CONFIG, dir=str(dir), **changes), per_class=per_class)


@pytest.fixture
def parent(tmp_path):
    """A folder that holds aclImdb."""
    fakes.write_folder(tmp_path / "data" / "aclImdb", fakes.reviews())
    return tmp_path / "data"


def rows(split):
    """The stored examples in order: (bytes, label)."""
    return [((ids - 1).astype(np.uint8).tobytes(), label) for ids, label in split]


def test_every_review_is_read_once_with_its_label(parent):
    task = load(parent)
    stored = {
        name: sorted(row for split in splits for row in rows(task.splits[split]))
        for name, splits in {"train": ("train", "valid"), "test": ("test",)}.items()
    }
    for split, found in stored.items():
        assert found == sorted(
            (content.strip(), int("/pos/" in name))
            for name, content in fakes.reviews().items()
            if name.startswith(split)
        )
    assert {name: np.bincount(split.labels).tolist() for name, split in task.splits.items()} == {
        "train": [18, 18],
        "valid": [2, 2],
        "test": [20, 20],
    }
    assert (task.name, task.class_names, task.image_shape) == ("text", ("neg", "pos"), None)


def test_the_official_sizes_are_the_default(parent):
    with pytest.raises(ValueError, match=r"needs 12,500 reviews .* has 20 in train/neg, 20 in"):
        data.load(dataclasses.replace(CONFIG, dir=str(parent)))


def test_ids_are_bytes_plus_one_and_zero_is_padding(parent):
    split = load(parent).splits["test"]
    batch = split.batch(np.arange(3), PADDING)
    for inputs, mask, (content, _) in zip(
        batch["inputs"], batch["mask"], rows(split), strict=False
    ):
        assert inputs[mask].tolist() == [byte + 1 for byte in content]
        assert not inputs[~mask].any()
        assert mask.sum() == len(content)


def test_decode_inverts_encode_and_drops_padding(parent):
    task = load(parent)
    ids, _ = task.splits["test"][0]
    assert task.decode(ids) == rows(task.splits["test"])[0][0].decode()
    assert "<br />" in task.decode(ids)
    assert "né" in task.decode(ids)
    assert task.decode(np.pad(ids, (0, 7))) == task.decode(ids)
    cut = np.frombuffer("né".encode()[:2], np.uint8).astype(np.int32) + 1
    assert task.decode(cut) == "n\N{REPLACEMENT CHARACTER}"


def test_folder_parent_and_archive_give_the_same_data(parent, tmp_path):
    files = fakes.reviews()
    unsup = {"train/unsup/0_0.txt": b"\xff", "README": b"\xff", "train/urls_pos.txt": b"\xff"}
    fakes.write_folder(parent / "aclImdb", unsup)
    archives = [
        fakes.write_archive(tmp_path / "a" / text.ARCHIVE, {**unsup, **files}, "aclImdb/"),
        fakes.write_archive(
            tmp_path / "b" / text.ARCHIVE,
            dict(reversed(files.items())),
            f"{tmp_path}/elsewhere/aclImdb/",
        ),
    ]
    tasks = [load(path) for path in (parent, parent / "aclImdb", *(a.parent for a in archives))]
    assert len({task.sha256 for task in tasks}) == 1
    assert [path.name for path in archives[0].parent.iterdir()] == [text.ARCHIVE]
    assert not (tmp_path / "elsewhere").exists()


def test_prepared_data_never_change(parent):
    """Golden: another hash means other data than those of the stored results."""
    task = load(parent)
    content = hashlib.sha256(repr({name: rows(s) for name, s in task.splits.items()}).encode())
    assert content.hexdigest() == "7da4b7eeaa221b3601a9ed0a0225a2d9219e7692f00e7453ef2096b35495ab74"
    assert task.sha256 == "5e08c600c8de88bca2787046063684f5aa129880e2fafbb0780090e8565c8aef"


def test_seed_changes_only_the_held_out_reviews(parent):
    first, second = load(parent), load(parent, seed=1)
    assert rows(first.splits["test"]) == rows(second.splits["test"])
    assert rows(first.splits["valid"]) != rows(second.splits["valid"])
    for task in (first, second):
        assert set(rows(task.splits["valid"])).isdisjoint(rows(task.splits["train"]))


def test_the_first_rows_of_every_split_are_a_random_sample(tmp_path):
    fakes.write_folder(tmp_path / "aclImdb", fakes.reviews(per_class=300))
    task = load(tmp_path, per_class=300)
    for split in task.splits.values():
        for count in (len(split) // 4, len(split) // 2):
            share = split.labels[:count].mean()
            assert abs(share - 0.5) < 2 / np.sqrt(count)  # four standard deviations


def test_equal_reviews_are_in_the_same_split(parent):
    names = [f"train/neg/{i}_2.txt" for i in range(20)]
    for i in range(0, 16, 2):
        content = (parent / "aclImdb" / names[i]).read_bytes().strip()
        (parent / "aclImdb" / names[i + 1]).write_bytes(content + b"\n")
    splits = load(parent).splits
    assert np.bincount(splits["valid"].labels).tolist() == [2, 2]
    assert set(rows(splits["valid"])).isdisjoint(rows(splits["train"]))
    assert len(rows(splits["train"])) + len(rows(splits["valid"])) == 40


def test_prepares_data_once_and_again_after_a_change(parent, caplog):
    caplog.set_level(logging.INFO)
    first = load(parent)
    assert load(parent).sha256 == first.sha256
    (message,) = caplog.messages
    assert message.startswith(f"Preparing Text: reading {parent / 'aclImdb'}; will be saved to ")
    assert pathlib.Path(message.split("saved to ")[1]) == first.folder

    (parent / "aclImdb/train/pos/3_9.txt").write_text("Changed.")
    second = load(parent)
    assert second.sha256 != first.sha256
    assert (b"Changed.", 1) in rows(second.splits["train"]) + rows(second.splits["valid"])


# --- Faults


def test_rejects_a_missing_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"neither aclImdb nor aclImdb_v1\.tar\.gz is in .*/nowhere\. Download https://",
    ):
        load(tmp_path / "nowhere")


def test_rejects_an_empty_data_dir():
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz: set --config\.data\.dir"):
        load("")


@pytest.mark.parametrize("name", ["train/pos/7_9.txt", "test/neg/0_2.txt"])
def test_error_counts_a_missing_review(parent, name):
    (parent / "aclImdb" / name).unlink()
    kind = name.rpartition("/")[0]
    with pytest.raises(ValueError, match=rf"needs 20 reviews .* 19 in {kind}.*Unpack aclImdb"):
        load(parent)
    assert data_folders() == []


def test_error_counts_an_additional_review(parent):
    (parent / "aclImdb/test/pos/99_9.txt").write_text("More.")
    with pytest.raises(ValueError, match=r"21 in test/pos"):
        load(parent)


def test_error_counts_a_missing_class(parent):
    (parent / "aclImdb/test/pos").rename(parent / "elsewhere")
    with pytest.raises(ValueError, match=r"20 in train/pos, 20 in test/neg, 0 in test/pos"):
        load(parent)


@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_error_names_the_file_of_an_invalid_utf_8_byte(tmp_path, kind):
    files = {**fakes.reviews(), "train/neg/4_2.txt": b" Na\xefve.\n"}
    if kind == "folder":
        fakes.write_folder(tmp_path / "aclImdb", files)
    else:
        fakes.write_archive(tmp_path / text.ARCHIVE, files, "aclImdb/")
    with pytest.raises(
        ValueError,
        match=r"^train/neg/4_2\.txt of .*aclImdb.* is not UTF-8 text: byte 4 is 0xef\.",
    ):
        load(tmp_path)
    assert data_folders() == []


def test_error_names_an_empty_review(parent):
    (parent / "aclImdb/train/neg/4_2.txt").write_text(" \n")
    with pytest.raises(ValueError, match=r"train/neg/4_2\.txt of .* is empty\."):
        load(parent)


def test_rejects_a_truncated_archive(tmp_path):
    path = fakes.write_archive(tmp_path / text.ARCHIVE, fakes.reviews(), "aclImdb/")
    path.write_bytes(path.read_bytes()[:-2_000])
    with pytest.raises(ValueError, match=r"aclImdb_v1\.tar\.gz is truncated or corrupt"):
        load(tmp_path)
    assert data_folders() == []
