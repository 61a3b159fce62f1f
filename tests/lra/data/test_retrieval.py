import hashlib
import itertools
import logging
import os
import pathlib
import random

import numpy as np
import pytest

from dataprep import cache
from lra.data import DataConfig, Padding, retrieval
from tests.helpers import data_folders

TEXTS = {
    f"P{number:02}-1001": f"Paper {number}, on {word} and naïve “quotes”\\n, b'as it stands'"
    for number, word in enumerate(["parsing", "tagging", "speech", "dialogue", "summaries"] * 3)
}
ROWS_PER_SPLIT = {"train": 97, "valid": 13, "test": 11}


def line(label, id1, id2, text1=None, text2=None):
    columns = (label, id1, id2, text1 or TEXTS[id1], text2 or TEXTS[id2])
    return "\t".join(columns).encode() + b"\n"


@pytest.fixture
def rows():
    """(label, id1, id2) for every split, sorted by label."""
    rng = random.Random(3)
    couples = rng.sample(list(itertools.permutations(TEXTS, 2)), sum(ROWS_PER_SPLIT.values()))
    labelled = ((rng.choice(["0.0", "1.0"]), *couple) for couple in couples)
    return {
        split: sorted(itertools.islice(labelled, count)) for split, count in ROWS_PER_SPLIT.items()
    }


@pytest.fixture
def folder(tmp_path, rows):
    """A folder of three small files in the official format."""
    for split, labelled in rows.items():
        path = tmp_path / "tsv_data" / retrieval.OFFICIAL_FILES[split]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(line(*row) for row in labelled))
    return tmp_path / "tsv_data"


def load(folder, **changes):
    return retrieval.load(
        DataConfig(**{"task": "retrieval", "dir": str(folder), "max_len": 4000, **changes})
    )


def write(folder, content, split="train"):
    (folder / retrieval.OFFICIAL_FILES[split]).write_bytes(content)


def contents(split):
    """The rows of a split as (label, text 1, text 2)."""
    return [
        (label, *(retrieval.decode(tokens) for tokens in texts)) for *texts, label in walk(split)
    ]


def walk(split):
    return (split[row] for row in range(len(split)))


def test_every_pair_has_its_texts_and_label(folder, rows):
    task = load(folder)
    assert list(task.splits) == ["train", "valid", "test"]
    for name, split in task.splits.items():
        expected = [(int(float(label)), TEXTS[one], TEXTS[two]) for label, one, two in rows[name]]
        assert sorted(contents(split)) == sorted(expected)
    assert (task.name, task.class_names) == ("retrieval", ("no citation", "citation"))


def test_each_document_is_stored_once_for_all_splits(folder):
    task = load(folder)
    documents = {id(split.sequences) for split in task.splits.values()}
    assert len(documents) == 1
    stored = task.splits["test"].sequences
    assert sorted(bytes((stored[i] - 1).tolist()) for i in range(len(stored))) == sorted(
        text.encode() for text in TEXTS.values()
    )
    (tokens,) = cache.cache_dir().glob("data/retrieval-*/*tokens.npy")
    assert np.load(tokens).nbytes == sum(len(text.encode()) for text in TEXTS.values())


def test_tokens_are_bytes_plus_one_in_batches_of_pairs(folder):
    split = load(folder).splits["valid"]
    batch = split.batch(np.array([5, 0, 5]), Padding(max_len=29, padded_len=31))
    assert {name: (array.dtype.name, array.shape) for name, array in batch.items()} == {
        "inputs1": ("int32", (3, 31)),
        "mask1": ("bool", (3, 31)),
        "inputs2": ("int32", (3, 31)),
        "mask2": ("bool", (3, 31)),
        "labels": ("int32", (3,)),
    }
    first, second, label = contents(split)[5][1:] + contents(split)[5][:1]
    for side, text in (("1", first), ("2", second)):
        expected = [byte + 1 for byte in text.encode()[:29]] + [0, 0]
        assert batch[f"inputs{side}"][2].tolist() == expected
        assert batch[f"mask{side}"].sum(axis=1).tolist() == [29] * 3
    assert batch["labels"][2] == label


def test_order_of_the_lines_does_not_matter(folder, tmp_path):
    again = [("1.0", *list(TEXTS)[:2]), ("0.0", *list(TEXTS)[:2])]  # of the same ids
    other_text = line("1.0", *list(TEXTS)[:2], text2="a second paper of this id")
    path = folder / retrieval.OFFICIAL_FILES["train"]
    lines = [*path.read_bytes().splitlines(True), *(line(*row) for row in again), other_text]
    write(folder, b"".join(lines))
    before = load(folder)
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        write(folder, b"".join(lines))
        os.utime(path, ns=(seed, seed))  # prepared anew
        after = load(folder)
        assert after.sha256 == before.sha256
        assert contents(after.splits["train"]) == contents(before.splits["train"])
    assert len(data_folders()) == 4


def test_rows_are_ordered_by_the_hash_of_their_ids(folder, rows):
    def digest(row):
        return hashlib.blake2b("\t".join(row[1:]).encode(), digest_size=8).digest()

    for name, split in load(folder).splits.items():
        expected = [
            (int(float(label)), TEXTS[one], TEXTS[two])
            for label, one, two in sorted(rows[name], key=digest)
        ]
        assert contents(split) == expected


def test_the_first_rows_are_a_sample_of_both_classes(folder):
    split = load(folder).splits["train"]  # in the file all zeros come first
    assert 5 < split.first(30).labels.sum() < 25


def test_modification_time_does_not_change_the_data(folder):
    before = load(folder)
    os.utime(folder / retrieval.OFFICIAL_FILES["test"], ns=(7, 7))
    assert load(folder).sha256 == before.sha256
    assert len(data_folders()) == 2


@pytest.mark.parametrize(("word", "same_time"), [(b"Paler", False), (b"Poster", True)])
def test_a_changed_file_is_prepared_again(folder, word, same_time):
    before = load(folder)
    path = folder / retrieval.OFFICIAL_FILES["test"]
    time_ns = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"Paper", word))
    if same_time:
        os.utime(path, ns=(time_ns, time_ns))
    assert load(folder).sha256 != before.sha256


def test_prepared_files_are_not_read_again(folder, monkeypatch):
    before = load(folder)
    monkeypatch.setattr(retrieval, "read_tsv", lambda *_: pytest.fail("read again"))
    assert load(folder, examples=3, max_len=7).sha256 == before.sha256


def test_accepts_integer_labels_and_windows_line_ends(folder):
    before = load(folder)
    for name in retrieval.OFFICIAL_FILES.values():
        content = (folder / name).read_bytes()
        for old, new in ((b"\n", b"\r\n"), (b"0.0\t", b"0\t"), (b"1.0\t", b"1\t")):
            content = content.replace(old, new)
        (folder / name).write_bytes(content.removesuffix(b"\r\n"))
    assert load(folder).sha256 == before.sha256


@pytest.mark.parametrize("below", [".", "tsv_data", "lra_release/lra_release/tsv_data"])
def test_the_files_are_found_below_the_folder(folder, tmp_path, below):
    place = tmp_path / "unpacked" / below
    place.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(place)
    assert len(load(tmp_path / "unpacked").splits["train"]) == 97


# --- Texts


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"a" * 10_001, b"a" * 10_000),
        (b"a" * 9_999 + "é".encode(), b"a" * 9_999 + b"\xc3"),
        (b"a" * 9_998 + "€".encode(), b"a" * 9_998 + b"\xe2\x82"),
        (b"a" * 9_998 + "é".encode(), b"a" * 9_998 + "é".encode()),
        (b"a" * 9_999 + b"\xc3", b"a" * 9_999 + b"\xc3"),  # somebody else cut it
    ],
)
def test_texts_are_cut_at_ten_thousand_bytes(folder, text, kept):
    write(folder, b"1.0\tA\tB\t" + text + b"\tshort\n")
    task = load(folder)
    first, second, _ = task.splits["train"][0]
    assert bytes((first - 1).tolist()) == kept
    assert task.decode(first) == kept.decode(errors="replace")
    assert task.decode(second) == "short"


def test_texts_that_are_equal_after_truncation_are_one_document(folder):
    for split in retrieval.OFFICIAL_FILES:
        write(folder, b"1\tA\tB\t" + b"a" * 10_000 + b"b\t" + b"a" * 10_000 + b"c\n", split)
    assert len(load(folder).splits["train"].sequences) == 1


def test_documents_are_identified_by_content(folder, caplog):
    caplog.set_level(logging.INFO)
    lines = [
        line("1.0", "A", "B", "one", "two"),
        line("1.0", "A", "C", "another", "two"),
        line("0.0", "B", "D", "two", "one"),
    ]
    for split in retrieval.OFFICIAL_FILES:
        write(folder, b"".join(lines), split)
    assert sorted(contents(load(folder).splits["train"])) == [
        (0, "two", "one"),
        (1, "another", "two"),
        (1, "one", "two"),
    ]
    assert "1 ids have more than one text, and 2 texts have more than one id" in caplog.text


# --- What is logged


def test_preparation_is_logged_once(folder, caplog):
    caplog.set_level(logging.INFO)
    load(folder)
    load(folder)
    preparing, documents = caplog.messages
    assert preparing.startswith("Preparing Retrieval: reading ")
    assert pathlib.Path(preparing.split("saved to ")[1]).is_dir()
    assert documents.endswith("15 in total.")


def test_documents_shared_with_training_are_counted(folder, caplog):
    caplog.set_level(logging.INFO)
    write(folder, line("1.0", "A", "B", "one", "two"), "train")
    write(folder, line("1.0", "A", "C", "one", "three"), "valid")
    write(folder, line("1.0", "D", "C", "four", "three"), "test")
    load(folder)
    assert "2 / 2 / 2 documents (train, valid, test), 2 / 1 / 0 of them also in train; 4" in (
        caplog.text
    )


# --- Faults


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            b"1.0\tA\tB\tone\n",
            r"expected 5 columns \(label, id1, id2, text1, text2\), found 4\. Fix it",
        ),
        (b"1.0\tA\tB\tone\ttwo\tthree\n", r"expected 5 columns .* found 6\. Fix it"),
        (b"\n", r"expected 5 columns .* found 1\. Fix it"),
        (b"2.0\tA\tB\tone\ttwo\n", r"expected a label 0\.0 or 1\.0, found '2\.0'"),
        (b"\tA\tB\tone\ttwo\n", "expected a label .* found ''\\."),
        (b"\xef\xbb\xbf1.0\tA\tB\tone\ttwo\n", "expected a label 0\\.0 or 1\\.0"),
        (b"1.0\tA\tB\t\ttwo\n", "text1 is empty"),
        (b"1.0\tA\tB\tone\t\n", "text2 is empty"),
        (b"1.0\tA\tB\tone\ttw\xff\n", "byte 3 of text2 is not valid UTF-8"),
        (b"1.0\tA\tB\tnaiv\xc3\ttwo\n", "byte 5 of text1 is not valid UTF-8"),
    ],
)
def test_error_names_a_malformed_line_and_leaves_no_data(folder, wrong, sentence):
    path = folder / retrieval.OFFICIAL_FILES["valid"]
    lines = path.read_bytes().splitlines(True)
    write(folder, b"".join([*lines[:4], wrong, *lines[4:]]), "valid")
    with pytest.raises(ValueError, match=rf"new_aan_pairs\.eval\.tsv, line 5: {sentence}") as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert data_folders() == []


def test_error_names_a_truncated_file(folder):
    path = folder / retrieval.OFFICIAL_FILES["test"]
    content = path.read_bytes()
    write(folder, content[: content.rindex(b"\t")], "test")
    with pytest.raises(
        ValueError, match=r"test\.tsv, line 11: .* found 4\. The file ends in this line\. Fix it"
    ):
        load(folder)


def test_error_names_an_empty_file(folder):
    write(folder, b"", "test")
    with pytest.raises(ValueError, match=r"new_aan_pairs\.test\.tsv is empty; unpack it again"):
        load(folder)


def test_error_about_missing_files_names_archive_and_flag(folder):
    (folder / retrieval.OFFICIAL_FILES["train"]).unlink()
    for place in (folder, folder.parent):
        with pytest.raises(
            FileNotFoundError,
            match=r"no new_aan_pairs\.train\.tsv in .*tsv_data\. Unpack .*data\.dir",
        ):
            load(place)
    with pytest.raises(
        FileNotFoundError, match=r"train\.tsv, .*eval\.tsv, .*test\.tsv in .*nowhere\."
    ):
        load(folder / "nowhere")
