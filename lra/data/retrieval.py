"""Retrieval: does one of two papers cite the other? Of the ACL Anthology Network, read byte by byte.

Read from the LRA release's `new_aan_pairs.{train,eval,test}.tsv`. A line is a pair: label, id1, id2,
text1 and text2 between tabs, without header or quoting. A paper stands in many pairs; its text is
stored once, for all splits.

Rows are ordered by a hash of their ids: the first rows of a split are a random sample of it, and
nothing depends on the order of the lines.

Source: google-research/long-range-arena, lra_benchmarks/matching/input_pipeline.py at cd31e5c. Same
tokens: the first 10,000 bytes of a text exactly as the file spells it, escapes and all, each plus 1,
and 0 for padding.
Differs from it: every pair is scored, where the original drops the last incomplete batch.
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
from tqdm import tqdm

from harness import cache
from lra.data.task import DataConfig, PairSplit, Sequences, Task
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

# Part of every fingerprint: raise it when the same files give other data.
FORMAT = 1

_FOLDERS = (".", "tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")
_COLUMNS = ("label", "id1", "id2", "text1", "text2")
_LABELS: Mapping[bytes, int] = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
# Sorted field by field: the hash first, and the rest for rows whose ids are the same.
_ROW = np.dtype(
    [("hash", np.uint64), ("first", np.int32), ("second", np.int32), ("label", np.int32)]
)

_logger = logging.getLogger(__name__)


def load(config: DataConfig) -> Task:
    """Opens Retrieval, preparing it first where it is not there yet.

    Args:
      config: `dir` holds the three files, itself or in `tsv_data`, `lra_release/tsv_data` or
        `lra_release/lra_release/tsv_data`; the first that has one of them counts. Prepared files are
        known again by name, size and time of change.

    Raises:
      ValueError: no `dir`, a source other than files, or a malformed file.
      FileNotFoundError: one of the files is missing.
    """
    paths = _official_paths(config)
    files = {split: _identity(path) for split, path in paths.items()}
    fingerprint = {"task": "retrieval", "format": FORMAT, "source": "files", "files": files}
    final_folder = cache.folder_of("retrieval", fingerprint)
    build = functools.partial(_build, paths=paths, final_folder=final_folder)
    prepared = cache.prepared("retrieval", fingerprint, build)
    documents = Sequences.open(prepared.folder, "documents", first_id=FIRST_ID)
    splits = {split: PairSplit.open(prepared.folder, split, documents) for split in OFFICIAL_FILES}
    return Task(
        name="retrieval",
        splits=splits,
        sha256=prepared.sha256,
        decode=decode,
        folder=prepared.folder,
        class_names=CLASS_NAMES,
    )


# --- Official files -------------------------------------------------------------------------------


class Pair(NamedTuple):
    """One line; texts are cut at `MAX_BYTES`."""

    label: int
    ids: tuple[bytes, bytes]
    texts: tuple[bytes, bytes]


def read_tsv(path: Path, on_bytes: Callable[[int], Any] = lambda _: None) -> Iterator[Pair]:
    """Yields the pairs of an official file, one line in memory at a time.

    Args:
      path: the file.
      on_bytes: told the length of every line.

    Raises:
      ValueError: the file is empty or malformed; the sentence names the file and the line.
    """
    line_number = 0
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            try:
                pair = _pair(line)
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {line_number}: {error} Mend it, or unpack lra_release.gz again."
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
            f"expected {len(_COLUMNS)} columns, {', '.join(_COLUMNS)}, found {len(columns)}.{cut_off}"
        )
    label, id1, id2, text1, text2 = columns
    if label not in _LABELS:
        raise ValueError(
            f"expected a label 0.0 or 1.0, found {label[:40].decode(errors='replace')!r}."
        )
    return Pair(_LABELS[label], (id1, id2), (_text("text1", text1), _text("text2", text2)))


def _text(column: str, text: bytes) -> bytes:
    """Cuts a text, and checks it; the last character may be one that the cut goes through."""
    if not text:
        raise ValueError(f"{column} is empty.")
    text = text[:MAX_BYTES]
    try:
        codecs.utf_8_decode(text, "strict", len(text) < MAX_BYTES)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start + 1} of {column} is not UTF-8 text.") from None
    return text


def _official_paths(config: DataConfig) -> dict[str, Path]:
    if config.source not in ("auto", "files"):
        raise ValueError(
            f"Retrieval has no source {config.source!r}: set data.source to auto or files."
        )
    advice = (
        "Unpack https://storage.googleapis.com/long-range-arena/lra_release.gz (tar -xf), and point"
        " --config.data.dir at the folder."
    )
    if not config.dir:
        raise ValueError(f"Retrieval needs the tsv files of the LRA release. {advice}")
    folders = [cache.user_path(config.dir) / below for below in _FOLDERS]

    def missing(folder: Path) -> list[str]:
        return [file for file in OFFICIAL_FILES.values() if not (folder / file).is_file()]

    folder = next((f for f in folders if len(missing(f)) < len(OFFICIAL_FILES)), folders[0])
    if missing(folder):
        raise FileNotFoundError(
            f"Retrieval needs the tsv files of the LRA release: no {', '.join(missing(folder))} in"
            f" {folder}. {advice}"
        )
    return {split: folder / file for split, file in OFFICIAL_FILES.items()}


def _identity(path: Path) -> dict[str, Any]:
    """What a file is known by: opened here, so that one that cannot be read says so at once."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
    return {"name": path.name, "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


# --- Preparation ----------------------------------------------------------------------------------


def _build(folder: Path, *, paths: Mapping[str, Path], final_folder: Path) -> None:
    _logger.info(
        "Preparing Retrieval: reading %s; once, into %s",
        ", ".join(map(str, paths.values())),
        final_folder,
    )
    numbers: dict[bytes, int] = {}  # of the texts: what is in them counts, and not their ids
    names: set[tuple[bytes, int]] = set()

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
    documents = Sequences.of(contents)
    documents.save(folder, "documents")
    places = np.argsort([numbers[content] for content in contents])  # the inverse permutation
    splits = {}
    for split, table in tables.items():
        for column in ("first", "second"):
            table[column] = places[table[column]]
        table.sort()
        pairs = np.stack([table["first"], table["second"]], axis=1)
        splits[split] = PairSplit(documents, pairs, table["label"])
        splits[split].save(folder, split)
    _log_statistics(splits, names)


def _hash(ids: tuple[bytes, bytes]) -> int:
    """Orders the rows; 64 bits."""
    return int.from_bytes(hashlib.blake2b(b"\t".join(ids), digest_size=8).digest(), "big")


def _log_statistics(splits: Mapping[str, PairSplit], names: set[tuple[bytes, int]]) -> None:
    documents = {name: np.unique(split.pairs) for name, split in splits.items()}
    shared = [len(np.intersect1d(documents["train"], some)) for some in documents.values()]
    _logger.info(
        "Retrieval: %s documents (train, valid, test), %s of them also in train; %s in all.",
        _listed(map(len, documents.values())),
        _listed(shared),
        f"{len({number for _, number in names}):,}",
    )
    several_texts, several_ids = (
        sum(count > 1 for count in Counter(column).values()) for column in zip(*names, strict=True)
    )
    if several_texts or several_ids:
        _logger.info(
            "Retrieval: %s ids stand for more than one text, and %s texts have more than one id.",
            f"{several_texts:,}",
            f"{several_ids:,}",
        )


def _listed(counts: Iterable[int]) -> str:
    return " / ".join(f"{count:,}" for count in counts)
