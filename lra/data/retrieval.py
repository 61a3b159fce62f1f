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
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import cache
from lra.data.task import DataConfig, Sequences, Split, Task, release_folders
from lra.data.text import FIRST_ID, decode

VOCAB_SIZE = FIRST_ID + 256
CLASS_NAMES = ("no citation", "citation")
MAX_BYTES = 10_000
OFFICIAL_SIZES: Mapping[str, int] = {"train": 147_086, "valid": 18_090, "test": 17_437}
OFFICIAL_FILES: Mapping[str, str] = {
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

_logger = logging.getLogger(__name__)


def load(config: DataConfig) -> Task:
    """Opens the task Retrieval; prepares the data if they are missing.

    The data are prepared again if the name, size or modification time of a file changes.

    The files are read from the first of `release_folders` that has one of them.

    Raises:
      ValueError: `dir` is empty, `source` is neither "auto" nor "files", or a file is malformed.
      FileNotFoundError: A file is missing.
    """
    paths = _official_paths(config)
    files = {split: _file_stamp(path) for split, path in paths.items()}
    fingerprint = {"task": "retrieval", "format": FORMAT, "source": "files", "files": files}
    build = functools.partial(_build, paths=paths)
    prepared = cache.prepared(
        "retrieval", fingerprint, build, f"Retrieval: reading {', '.join(map(str, paths.values()))}"
    )
    documents = Sequences.open(prepared.folder, "documents", first_id=FIRST_ID)
    return Task.open("retrieval", prepared, decode, documents=documents, class_names=CLASS_NAMES)


# --- Official files -------------------------------------------------------------------------------


class Pair(NamedTuple):
    """One line of an official file; texts are truncated to `MAX_BYTES`."""

    label: int
    ids: tuple[bytes, bytes]
    texts: tuple[bytes, bytes]


def read_tsv(path: Path, on_bytes: Callable[[int], Any] = lambda _: None) -> Iterator[Pair]:
    """Yields the pairs of an official file, reading one line at a time.

    `on_bytes` is called with the length of each line.

    Raises:
      ValueError: The file is empty or malformed; the message names the file and the line.
    """
    line_number = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            try:
                pair = _pair(line)
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {line_number}: {error} Fix it, or unpack lra_release.gz again."
                ) from None
            yield pair
            on_bytes(len(line))
    if not line_number:
        raise ValueError(f"{path} is empty; unpack it again.")


def _pair(line: bytes) -> Pair:
    columns = line.rstrip(b"\r\n").split(b"\t")
    if len(columns) != len(_COLUMNS):
        cut_off = "" if line.endswith(b"\n") else " The file ends in this line."
        raise ValueError(
            f"expected {len(_COLUMNS)} columns ({', '.join(_COLUMNS)}), found {len(columns)}.{cut_off}"
        )
    label, id1, id2, text1, text2 = columns
    if label not in _LABELS:
        raise ValueError(
            f"expected a label 0.0 or 1.0, found {label[:40].decode(errors='replace')!r}."
        )
    return Pair(_LABELS[label], (id1, id2), (_text("text1", text1), _text("text2", text2)))


def _text(column: str, text: bytes) -> bytes:
    """Truncates and validates a text; the last character may be cut."""
    if not text:
        raise ValueError(f"{column} is empty.")
    text = text[:MAX_BYTES]
    try:
        codecs.utf_8_decode(text, "strict", len(text) < MAX_BYTES)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of {column} is not valid UTF-8.") from None
    return text


def _official_paths(config: DataConfig) -> dict[str, Path]:
    archive = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    config.choose_source("Retrieval", None, f"the tsv files of {archive} (tar -xf)")
    folders = release_folders(cache.user_path(config.dir), "tsv_data", "aan")

    def missing(folder: Path) -> list[str]:
        return [file for file in OFFICIAL_FILES.values() if not (folder / file).is_file()]

    folder = next((f for f in folders if len(missing(f)) < len(OFFICIAL_FILES)), folders[0])
    if missing(folder):
        raise FileNotFoundError(
            f"Retrieval needs the tsv files of the LRA release: no {', '.join(missing(folder))} in"
            f" {folder}. Unpack {archive} (tar -xf) and set --config.data.dir to its folder."
        )
    return {split: folder / file for split, file in OFFICIAL_FILES.items()}


def _file_stamp(path: Path) -> dict[str, Any]:
    """Returns name, size and modification time of a file; raises OSError if it cannot be read."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
    return {"name": path.name, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


# --- Preparation ----------------------------------------------------------------------------------


def _build(folder: Path, *, paths: Mapping[str, Path]) -> None:
    numbers: dict[bytes, int] = {}  # texts are identified by content, not by id
    names: set[tuple[bytes, int]] = set()  # (id, number of its text)

    def rows(pairs: Iterable[Pair]) -> Iterator[tuple[int, int, int, int]]:
        for label, ids, (text1, text2) in pairs:
            first = numbers.setdefault(text1, len(numbers))
            second = numbers.setdefault(text2, len(numbers))
            names.update(zip(ids, (first, second), strict=True))
            yield _hash(ids), first, second, label

    num_bytes = sum(path.stat().st_size for path in paths.values())
    with tqdm(None, "Retrieval", num_bytes, unit="B", unit_scale=True, disable=None) as progress:
        tables = {
            split: np.fromiter(rows(read_tsv(path, progress.update)), _ROW)
            for split, path in paths.items()
        }
    contents = sorted(numbers)
    documents = Sequences.from_bytes(contents)
    documents.save(folder, "documents")
    places = np.argsort([numbers[content] for content in contents])  # the inverse permutation
    pairs = {}
    for split, table in tables.items():
        for column in ("first", "second"):
            table[column] = places[table[column]]
        table.sort()
        pairs[split] = np.stack([table["first"], table["second"]], axis=1)
        Split(documents, table["label"], pairs[split]).save(folder, split)
    _log_statistics(pairs, names)


def _hash(ids: tuple[bytes, bytes]) -> int:
    """Returns a 64-bit hash of the ids of a pair, by which rows are sorted."""
    return int.from_bytes(hashlib.blake2b(b"\t".join(ids), digest_size=8).digest(), "big")


def _log_statistics(
    pairs: Mapping[str, npt.NDArray[np.int32]], names: set[tuple[bytes, int]]
) -> None:
    documents = {split: np.unique(own) for split, own in pairs.items()}
    shared = [len(np.intersect1d(documents["train"], other)) for other in documents.values()]
    _logger.info(
        "Retrieval: %s documents (train, valid, test), %s of them also in train; %s in total.",
        " / ".join(f"{len(numbers):,}" for numbers in documents.values()),
        " / ".join(f"{count:,}" for count in shared),
        f"{len({number for _, number in names}):,}",
    )
    several_texts, several_ids = (
        sum(count > 1 for count in Counter(column).values()) for column in zip(*names, strict=True)
    )
    if several_texts or several_ids:
        _logger.info(
            "Retrieval: %s ids have more than one text, and %s texts have more than one id.",
            f"{several_texts:,}",
            f"{several_ids:,}",
        )
