import hashlib
import os
import random

import numpy as np
import pytest

from dataprep import cache
from lra.data import retrieval
from tests.helpers import data_folders
from tests.lra.data import fakes


@pytest.fixture
def folder(tmp_path):
    return fakes.write_folder(tmp_path / "tsv_data", fakes.files("retrieval"))


def load(folder):
    return fakes.load("retrieval", folder)


def write(folder, content, split="train"):
    (folder / retrieval.FILES[split]).write_bytes(content)


def test_each_document_is_stored_once_for_all_splits(folder):
    task = load(folder)
    assert len({id(split.sequences) for split in task.splits.values()}) == 1
    stored = task.splits["test"].sequences
    papers = sorted(text.encode() for text in fakes.PAPERS)
    assert sorted(bytes((stored[i] - 1).tolist()) for i in range(len(stored))) == papers
    (tokens,) = cache.cache_dir().glob("data/retrieval-*/*tokens.npy")
    assert np.load(tokens).nbytes == sum(map(len, papers))


def test_order_of_the_lines_does_not_matter(folder):
    path = folder / retrieval.FILES["train"]
    others = [(1, 0, 1), (0, 0, 1), (1, 0, 1, None, "a second paper of this id")]
    lines = [*path.read_bytes().splitlines(True), *(fakes.pair_line(*pair) for pair in others)]
    hashes = set()
    for seed in range(3):
        random.Random(seed).shuffle(lines)
        path.write_bytes(b"".join(lines))
        os.utime(path, ns=(seed, seed))  # prepared anew
        hashes.add(load(folder).sha256)
    assert (len(hashes), len(data_folders())) == (1, 3)


def test_rows_are_ordered_by_the_hash_of_their_ids(folder):
    """So the first rows are a sample of both classes."""

    def digest(pair):
        return hashlib.blake2b(f"P{pair[1]}\tP{pair[2]}".encode(), digest_size=8).digest()

    splits = load(folder).splits
    for name, split in splits.items():
        expected = [
            (fakes.PAPERS[one].encode(), fakes.PAPERS[other].encode(), label)
            for label, one, other in sorted(fakes.pairs()[name], key=digest)
        ]
        assert fakes.rows(split) == expected
    assert 5 < splits["train"].first(30).labels.sum() < 25  # in the file all zeros come first


def test_accepts_integer_labels_and_windows_line_ends(folder):
    before = load(folder)
    for name in retrieval.FILES.values():
        content = (folder / name).read_bytes()
        for old, new in ((b"\n", b"\r\n"), (b"0.0\t", b"0\t"), (b"1.0\t", b"1\t")):
            content = content.replace(old, new)
        (folder / name).write_bytes(content.removesuffix(b"\r\n"))
    assert load(folder).sha256 == before.sha256


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (b"a" * 9_999 + "é".encode(), b"a" * 9_999 + b"\xc3"),
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


def test_documents_are_identified_by_content_after_truncation(folder):
    lines = [
        fakes.pair_line(1, 0, 1, "one", "two"),
        fakes.pair_line(1, 0, 2, "another", "two"),
        fakes.pair_line(0, 1, 3, "two", "one"),
        fakes.pair_line(0, 1, 4, "a" * 10_000 + "b", "a" * 10_000 + "c"),
    ]
    for split in retrieval.FILES:
        write(folder, b"".join(lines), split)
    split = load(folder).splits["train"]
    assert len(split.sequences) == 4
    assert sorted(fakes.rows(split))[1:] == [
        (b"another", b"two", 1),
        (b"one", b"two", 1),
        (b"two", b"one", 0),
    ]
