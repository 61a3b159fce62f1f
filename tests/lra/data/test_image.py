import dataclasses
import hashlib

import numpy as np
import pytest

from lra import data
from lra.data import image
from tests.helpers import data_folders
from tests.lra.data import fakes

SIZE = fakes.IMAGES_PER_FILE
CONFIG = data.DataConfig(task="image", max_len=1024)
NAMES = [name for names in image.FILES.values() for name in names]


def load(dir, images_per_file=SIZE, **changes):
    config = dataclasses.replace(CONFIG, dir=str(dir), **changes)
    return image.load(config, images_per_file=images_per_file)


@pytest.fixture
def parent(tmp_path):
    """A folder that holds cifar-10-batches-bin."""
    fakes.write_folder(tmp_path / "data" / "cifar-10-batches-bin", fakes.batches())
    return tmp_path / "data"


def rows(split):
    return [(tokens.astype(np.uint8).tobytes(), label) for tokens, label in split]


def tensorflow_grey(red, green, blue):
    """tf.image.rgb_to_grayscale, step by step in float32: to 0..1, weighted sum, back with x.5."""
    one = np.float32
    red, green, blue = (
        np.asarray(colour).astype(np.float32) * one(1 / 255) for colour in (red, green, blue)
    )
    grey = (red * one(0.2989) + green * one(0.5870)) + blue * one(0.1140)
    return np.trunc(grey * one(255.5)).astype(np.uint8)


# --- Grey


def test_grey_colors_are_unchanged():
    greys = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(image.to_gray(np.stack([greys] * 3, -1)), greys)


@pytest.mark.parametrize(
    ("colour", "grey"),
    [
        # Values of TensorFlow 2.21 where another order or precision differs by one.
        ((0, 122, 186), 93),  # not float64
        ((1, 234, 202), 160),  # not blue first, fused
        ((5, 171, 227), 128),  # not a division by 255
        ((5, 49, 41), 34),  # not green and blue first
        ((11, 169, 99), 114),  # not red and blue first
        ((16, 218, 140), 148),  # not fused
        ((255, 0, 0), 76),
        ((0, 255, 0), 149),
        ((0, 0, 255), 29),
    ],
)
def test_grey_values_equal_those_of_tensorflow(colour, grey):
    assert image.to_gray(np.array(colour, np.uint8)) == grey


def test_grey_of_every_color_equals_that_of_tensorflow():
    """Compares with the formula, and with the hash of the values of TensorFlow 2.21."""
    green, blue = np.indices((256, 256), np.uint8)
    digest = hashlib.sha256()
    for red in range(256):
        colours = np.stack([np.full_like(green, red), green, blue], -1)
        grey = image.to_gray(colours)
        assert grey.dtype == np.uint8
        np.testing.assert_array_equal(grey, tensorflow_grey(*np.moveaxis(colours, -1, 0)))
        digest.update(grey.tobytes())
    assert digest.hexdigest() == "824a76d81dad2c5a2cf1fa0b2c0a5afe7d871ec2970e4fa2809b53ddbecdca93"


# --- The data


def test_every_image_is_read_once_in_file_order(parent):
    task = load(parent)
    expected = {}
    for split, names in image.FILES.items():
        expected[split] = []
        for name in names:
            for record in np.frombuffer(fakes.batches()[name], np.uint8).reshape(-1, 3073):
                red, green, blue = record[1:].reshape(3, 1024)
                grey = tensorflow_grey(red, green, blue)
                expected[split].append((grey.tobytes(), int(record[0])))
    valid = set(rows(task.splits["valid"]))
    assert rows(task.splits["test"]) == expected["test"]
    assert rows(task.splits["train"]) == [row for row in expected["train"] if row not in valid]
    assert rows(task.splits["valid"]) == [row for row in expected["train"] if row in valid]
    assert np.bincount(task.splits["train"].labels).tolist() == [18] * 10
    assert np.bincount(task.splits["valid"].labels).tolist() == [2] * 10
    assert (task.name, task.image_shape, len(task.class_names)) == ("image", (32, 32), 10)
    assert data.describe(task.name).images


def test_the_official_sizes_are_the_default(parent):
    with pytest.raises(
        ValueError, match=r"122,920 bytes; 10,000 images of 3,073 bytes need 30,730"
    ):
        data.load(dataclasses.replace(CONFIG, dir=str(parent)))


def test_tokens_are_grey_values(parent):
    split = load(parent).splits["test"]
    batch = split.batch(np.arange(2), CONFIG.padding)
    assert batch["mask"].all()
    assert batch["inputs"].dtype == np.int32
    np.testing.assert_array_equal(batch["inputs"][1], split[1][0])


def test_folder_parent_and_archive_give_the_same_data(parent, tmp_path):
    files = {**fakes.batches(), "batches.meta.txt": b"airplane\n", "readme.html": b""}
    reverse = dict(reversed(files.items()))
    fakes.write_archive(tmp_path / image.ARCHIVE, reverse, "cifar-10-batches-bin/")
    tasks = [load(path) for path in (parent, parent / "cifar-10-batches-bin", tmp_path)]
    assert len({task.sha256 for task in tasks}) == 1


def test_prepared_data_never_change(parent):
    """Golden: another hash means other data than those of the stored results."""
    task = load(parent)
    content = hashlib.sha256(repr({name: rows(s) for name, s in task.splits.items()}).encode())
    assert content.hexdigest() == "52cd4f11c674b4a438b73ca9323fbfe80a81cb575c1b499d3f9e3ae7f2ccc033"
    assert task.sha256 == "45e26d82c89501f6ff8e93152c89fc524dabfc63605d5bd5dc4165731a3d6236"


def test_seed_changes_only_the_held_out_images(parent):
    first, second = load(parent), load(parent, seed=1)
    assert rows(first.splits["test"]) == rows(second.splits["test"])
    assert rows(first.splits["valid"]) != rows(second.splits["valid"])


def test_images_of_equal_grey_are_in_the_same_split(tmp_path):
    """The second file repeats every image of the first in other colors with the same grey."""
    files = fakes.batches()
    records = np.frombuffer(files[NAMES[0]], np.uint8).reshape(-1, 3073).copy()
    records[:, 1:] = np.tile(records[:, 1:1025], 3)  # grey
    files[NAMES[0]] = records.tobytes()
    records[:, 2049:] |= 1  # change of blue that does not change the grey value
    files[NAMES[1]] = records.tobytes()
    fakes.write_folder(tmp_path / "cifar-10-batches-bin", files)
    splits = load(tmp_path).splits
    assert len({row for split in ("train", "valid") for row in rows(splits[split])}) == 160
    assert set(rows(splits["train"])).isdisjoint(rows(splits["valid"]))
    assert np.bincount(splits["valid"].labels).tolist() == [2] * 10


def test_decode_draws_the_image(parent):
    task = load(parent)
    picture = np.zeros((32, 32), int)
    picture[:2, 3:5] = 255
    picture[30:, 31] = 128
    lines = task.decode(picture.ravel()).split("\n")
    assert len(lines) == 16
    assert lines[0] == "   @@"
    assert lines[15] == " " * 31 + "+"
    assert lines[1:15] == [""] * 14


# --- Faults


def test_rejects_a_missing_folder(tmp_path):
    with pytest.raises(
        FileNotFoundError,
        match=r"neither cifar-10-batches-bin nor cifar-10-binary\.tar\.gz is in .*\. Download",
    ):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-10-python.tar.gz"])
def test_rejects_pickles(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(
        FileNotFoundError,
        match=rf"binary version .* \({name} is, but pickles are not read\)\. Download https://",
    ):
        load(tmp_path)


def test_error_names_a_missing_file(parent):
    (parent / "cifar-10-batches-bin/data_batch_3.bin").unlink()
    (parent / "cifar-10-batches-bin/test_batch.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"lacks data_batch_3\.bin, test_batch\.bin\. Unp"):
        load(parent)


@pytest.mark.parametrize("change", [-1, 1, -3073])
def test_error_names_a_file_of_the_wrong_size(parent, change):
    path = parent / "cifar-10-batches-bin/data_batch_2.bin"
    content = path.read_bytes()
    path.write_bytes(content[:change] if change < 0 else content + b"0" * change)
    with pytest.raises(
        ValueError, match=r"data_batch_2\.bin of .* bytes; 40 images of 3,073 bytes need 122,920\."
    ):
        load(parent)
    assert data_folders() == []


def test_error_names_an_invalid_label(parent):
    path = parent / "cifar-10-batches-bin/test_batch.bin"
    content = bytearray(path.read_bytes())
    content[17 * 3073] = 10
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"Image 17 of test_batch\.bin of .* label 10; CIFAR-10 has 0 to 9\."
    ):
        load(parent)


def test_rejects_a_class_with_too_few_images(parent):
    for name in image.FILES["train"]:
        path = parent / "cifar-10-batches-bin" / name
        records = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 3073).copy()
        records[records[:, 0] == 3, 0] = 4
        path.write_bytes(records.tobytes())
    with pytest.raises(ValueError, match=r"2 examples of each class .* class 3 has 0"):
        load(parent)
