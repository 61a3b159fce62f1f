"""IMDb's reviews: the same from a folder and its archive, and a tenth held out."""

import pytest

from language.finetune import glue as data
from language.finetune.glue_tasks import TASKS
from tests.language.finetune.glue_fakes import archive, write_reviews

IMDB = TASKS["imdb"]


def read(folder, seed=0):
    return data.read(IMDB, data.find(IMDB, folder), seed)[0]


def contents(splits):
    return {name: [(row.texts, row.label, row.id) for row in rows] for name, rows in splits.items()}


@pytest.fixture
def folder(tmp_path):
    return write_reviews(tmp_path / "raw")


def test_folder_parent_and_archive_give_the_same_reviews(folder, tmp_path):
    splits = read(folder)
    (tmp_path / "packed").mkdir()
    packed = archive(folder, tmp_path / "packed" / "aclImdb_v1.tar.gz")
    for place in (folder.parent, packed, packed.parent):
        assert contents(read(place)) == contents(splits)


def test_holds_out_a_tenth_of_each_class_by_seed(folder):
    splits = read(folder)
    assert {name: len(rows) for name, rows in splits.items()} == {
        "train": 36,
        "valid": 4,
        "test": 40,
    }
    assert sorted(row.label for row in splits["valid"]) == ["neg", "neg", "pos", "pos"]
    held, others = ({row.id for row in read(folder, seed)["valid"]} for seed in (0, 1))
    assert held != others
    assert not held & {row.id for row in splits["train"]}


def test_a_review_keeps_its_name_label_and_text(folder):
    splits = read(folder)
    rows = {row.id: row for rows in splits.values() for row in rows}
    assert len(rows) == 80
    for index, row in rows.items():
        assert row.label == index.split("/")[1]
        assert row.texts[0] == (folder / f"{index}.txt").read_text(encoding="utf-8").strip()


def test_any_prefix_has_both_classes(folder):
    """Files are sorted by class; reviews must not be."""
    labels = [row.label for row in read(folder)["test"]]
    assert sorted(labels) != labels
    assert len(set(labels[:8])) == 2


def test_error_names_an_invalid_review(folder):
    file = folder / "train" / "pos" / "3_9.txt"
    for content, words in ((b" \n", "is empty"), (b"caf\xe9", "is not UTF-8 text: byte 4 is 0xe9")):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=f"train/pos/3_9.txt of {folder} {words}"):
            read(folder)


def test_error_names_a_class_without_reviews(folder):
    for file in (folder / "test" / "neg").iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="has too few reviews in test/neg: 0"):
        read(folder)
    for file in sorted((folder / "train" / "pos").iterdir())[1:]:
        file.unlink()
    with pytest.raises(ValueError, match="has too few reviews in train/pos: 1"):
        read(folder)


def test_missing_reviews_error_says_where_to_download(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"neither aclImdb nor .* is in {tmp_path}"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"is in .*nowhere"):
        read(tmp_path / "nowhere")
