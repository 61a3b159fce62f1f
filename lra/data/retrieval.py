"""Retrieval: does one of two papers of the ACL Anthology Network cite the other? Texts as bytes.

The data are read from `new_aan_pairs.{train,eval,test}.tsv` of the LRA release. A line is a pair:
label, id1, id2, text1 and text2, separated by tabs, without header or quoting. A paper occurs in many
pairs; each text is stored once for all splits.

Rows are sorted by a hash of the two ids. The first rows of a split are therefore a random sample, and
the data do not depend on the order of the lines.

Source: google-research/long-range-arena, lra_benchmarks/matching/input_pipeline.py at cd31e5c. Same
tokens: byte + 1 for the first 10,000 bytes of a text, with escape sequences as in the file, and 0 for
padding.
Differs: all pairs are evaluated; the original drops the last incomplete batch.
"""

import codecs
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dataprep import cache
from lra.data import release
from lra.data.task import DataConfig, Sequences, Split, Task, TaskInfo
from lra.data.text import FIRST_ID, decode

CLASS_NAMES = ("no citation", "citation")
MAX_BYTES = 10_000
FILES: Mapping[str, str] = {
    "train": "new_aan_pairs.train.tsv",
    "valid": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1

_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_LABELS: Mapping[bytes, int] = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
# Rows are sorted by the hash, and by the other fields where hashes are equal.
_ROW = np.dtype(
    [("hash", np.uint64), ("first", np.int32), ("second", np.int32), ("label", np.int32)]
)


def load(config: DataConfig) -> Task:
    """Opens the task Retrieval; prepares the data if they are missing.

    The data are prepared again if the name, size or modification time of a file changes.

    Raises:
      ValueError: `dir` is empty, `source` is neither "auto" nor "files", or a file is malformed.
      FileNotFoundError: A file is missing.
    """
    config.choose_source("Retrieval", ("files",), f"the tsv files of {release.URL} (tar -xf)")
    folder = release.find("Retrieval", config.dir, ("tsv_data", "aan"), FILES.values())
    paths = {split: folder / name for split, name in FILES.items()}
    files = {split: _file_stamp(path) for split, path in paths.items()}
    fingerprint = {"task": "retrieval", "format": FORMAT, "source": "files", "files": files}
    build = functools.partial(_build, paths=paths)
    prepared = cache.prepared("retrieval", fingerprint, build, f"Retrieval: reading {folder}")
    documents = Sequences.open(prepared.folder, "documents", first_id=FIRST_ID)
    return Task.open("retrieval", prepared, decode, documents=documents, class_names=CLASS_NAMES)


def _pair(line: bytes) -> tuple[int, bytes, bytes, int]:
    """Returns a 64-bit hash of the ids, by which rows are sorted, the truncated texts, and the label."""
    label, id1, id2, text1, text2 = release.cells(line, _COLUMNS)
    if label not in _LABELS:
        raise ValueError(
            f"expected a label 0.0 or 1.0, found {label[:40].decode(errors='replace')!r}."
        )
    digest = hashlib.blake2b(id1 + b"\t" + id2, digest_size=8).digest()
    order = int.from_bytes(digest, "big")
    return order, _text("text1", text1), _text("text2", text2), _LABELS[label]


def _text(column: str, text: bytes) -> bytes:
    """Truncates and validates a text; the last character may be cut."""
    if not text:
        raise ValueError(f"{column} is empty.")
    text = text[:MAX_BYTES]
    codecs.utf_8_decode(text, "strict", len(text) < MAX_BYTES)
    return text


def _file_stamp(path: Path) -> dict[str, object]:
    status = path.stat()
    return {"name": path.name, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _build(folder: Path, *, paths: Mapping[str, Path]) -> None:
    numbers: dict[bytes, int] = {}  # texts are identified by content, not by id
    tables = {}
    for split, path in paths.items():
        rows = (
            (
                order,
                numbers.setdefault(text1, len(numbers)),
                numbers.setdefault(text2, len(numbers)),
                label,
            )
            for order, text1, text2, label in release.read_lines(path, _pair)
        )
        tables[split] = np.fromiter(rows, _ROW)
    contents = sorted(numbers)
    documents = Sequences.from_bytes(contents)
    documents.save(folder, "documents")
    places = np.argsort([numbers[content] for content in contents])  # the inverse permutation
    for split, table in tables.items():
        for column in ("first", "second"):
            table[column] = places[table[column]]
        table.sort()
        pairs = np.stack([table["first"], table["second"]], axis=1)
        Split(documents, table["label"], pairs).save(folder, split)


INFO = TaskInfo(
    vocab_size=FIRST_ID + 256,
    num_classes=len(CLASS_NAMES),
    load=load,
    sizes={"train": 147_086, "valid": 18_090, "test": 17_437},
    total_steps=30_000,
    pairs=True,
)
