"""Text and Image from tensorflow-datasets."""

import json
import pathlib
import sys

import pytest

from dataprep import tfds_reader
from tests.helpers import data_folders
from tests.lra.data import fakes
from tests.programs import finish, start

WRITERS = {"text": fakes.write_imdb_tfds, "image": fakes.write_cifar_tfds}
NAMES = {"text": "imdb_reviews/plain_text", "image": "cifar10"}


def load(name, dir):
    return fakes.load(name, dir, source="tfds")


def write_metadata(folder, content):
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text(content)
    return folder


# --- Reading


@pytest.mark.parametrize("name", WRITERS)
def test_examples_of_tfds_equal_those_of_the_files(name, tmp_path, monkeypatch):
    """Also after a change."""
    monkeypatch.setattr(tfds_reader, "_BATCH_ROWS", 17)  # in several pieces
    files = dict(fakes.files(name))
    for round in range(2):
        own = tmp_path / str(round)
        fakes.write_folder(own / fakes.FOLDERS[name], files)
        folder = WRITERS[name](tmp_path / "tfds", files)
        assert load(name, tmp_path / "tfds").sha256 == fakes.load(name, own).sha256
        folder.rename(tmp_path / f"old {round}")
        last = list(files)[-1]
        files[last] = files[last][:-1] + b"!"


def test_does_not_import_tensorflow_and_numba(tmp_path):
    fakes.write_imdb_tfds(tmp_path / "tfds", fakes.reviews())
    script = f"""
import sys
from lra.data import DataConfig, pathfinder_generator, text
pathfinder_generator.parameters(32, 'hard')
assert 'tensorflow_datasets' not in sys.modules
config = DataConfig(task='text', max_len=9, source='tfds', dir={str(tmp_path / "tfds")!r})
text.load(config, per_class={fakes.REVIEWS_PER_CLASS})
heavy = ('tensorflow_datasets', 'tensorflow', 'numba', 'jax')
print(*(name in sys.modules for name in heavy))
"""
    answer = finish(start("-c", script))
    assert answer.output == "True False False False\n", answer


@pytest.mark.parametrize("variable", ["TFDS_DATA_DIR", "HOME"])
def test_default_folder_is_that_of_tfds(monkeypatch, tmp_path, variable):
    fakes.write_imdb_tfds(tmp_path / "tensorflow_datasets", fakes.reviews())
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    monkeypatch.setenv(
        variable, str(tmp_path / "tensorflow_datasets" if variable != "HOME" else tmp_path)
    )
    assert len(load("text", "").splits["test"]) == 2 * fakes.REVIEWS_PER_CLASS


def test_uses_the_newest_version_that_needs_no_tensorflow(tmp_path):
    for version, file_format in [
        ("9.0.0", "array_record"),
        ("10.0.0", "array_record"),
        ("11.0.0", "tfrecord"),
        ("incomplete.ABC_12.0.0", "array_record"),
    ]:
        write_metadata(tmp_path / "cifar10" / version, json.dumps({"fileFormat": file_format}))
    found = tfds_reader.PreparedByTfds.find(str(tmp_path), "cifar10", task="Image")
    assert found.path == tmp_path / "cifar10" / "10.0.0"


# --- Faults


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_dataset_is_reported_before_tfds_is_imported(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)  # an import would fail
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path}/no .*builder\('{NAMES[name]}'"):
        load(name, tmp_path / "no")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ('{"fileFormat": "tfrecord"}', "TensorFlow"),
        ("", "corrupt"),
        ("{}", "corrupt"),
    ],
)
def test_metadata_of_another_format_or_corrupt_metadata_are_errors(tmp_path, content, word):
    folder = write_metadata(tmp_path / "cifar10/3.0.2", content)
    with pytest.raises((FileNotFoundError, ValueError), match=rf"{folder}.* {word}"):
        load("image", tmp_path)


def cut(shard):
    shard.write_bytes(shard.read_bytes()[:-70_000])


def forget_split(shard):
    info = shard.parent / "dataset_info.json"
    description = json.loads(info.read_text())
    description["splits"] = [row for row in description["splits"] if row["name"] != "test"]
    info.write_text(json.dumps(description))


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (pathlib.Path.unlink, "imdb_reviews-test"),
        (cut, "corrupt"),
        (forget_split, "split test"),
    ],
)
def test_a_damaged_dataset_is_named_and_leaves_no_data(tmp_path, damage, word):
    folder = fakes.write_imdb_tfds(tmp_path / "tfds", fakes.reviews())
    (shard,) = folder.glob("*-test.*")
    damage(shard)
    with pytest.raises(ValueError, match=rf"{folder}.* {word}"):
        load("text", tmp_path / "tfds")
    assert data_folders() == []
