"""Text: is a review of a film good or bad, read byte by byte? The IMDb reviews of Maas et al. 2011.

Read from the folder `aclImdb`, from `aclImdb_v1.tar.gz`, or through tensorflow-datasets; the
prepared data are the same bytes from each.

Source: google-research/long-range-arena, text_classification/input_pipeline.py at cd31e5c, which
reads `imdb_reviews` of tensorflow-datasets: id = UTF-8 byte + 1, HTML kept, white space stripped
from both ends.
Differs from it: 1,250 training reviews a class are held out for validation, where the original
validates on the test split.
"""

import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from harness import cache
from harness.held_out import held_out
from harness.raw_files import RawFiles
from harness.tfds_reader import PreparedByTfds
from lra.data import sources
from lra.data.task import DataConfig, Sequences, Split, Task

VOCAB_SIZE = 257
FIRST_ID = 1  # of the byte 0: the id 0 is padding
CLASS_NAMES = ("neg", "pos")
SIZES = {"train": 22_500, "valid": 2_500, "test": 25_000}
ROOT = "aclImdb"
ARCHIVE = "aclImdb_v1.tar.gz"
# Of what `load` prepares from the official data with seed 0: a report may call these official.
OFFICIAL_SHA256 = "6edd5d57f264ec306a0d5092e30af2c1e73c09f0591625d4190fa439a655a04f"
URL = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}"
TFDS_NAME = "imdb_reviews/plain_text"

# Part of every fingerprint: raise it when the same files give other data.
FORMAT = 1

_ANEW = f"Unpack a fresh {ARCHIVE}, or prepare it anew with tfds."
_SUBFOLDERS = tuple(f"{split}/{name}/" for split in ("train", "test") for name in CLASS_NAMES)

_logger = logging.getLogger(__name__)


class Review(NamedTuple):
    """A review and where it comes from."""

    origin: str
    split: str
    label: int
    text: bytes


def load(config: DataConfig, *, per_class: int = 12_500) -> Task:
    """Opens the reviews, preparing them first where they are not there yet.

    A tenth of the training reviews is held out for validation. Reviews are stored whole, ordered by
    their hash: any first part of a split is a random sample of it.

    Args:
      config: `source` is "files" (the folder or the archive in `dir`), "tfds" (prepared in `dir`,
        or where tfds keeps its data), or "auto": files.
      per_class: reviews of each class in train and in test.

    Raises:
      FileNotFoundError: there are no reviews where `config` says.
      ValueError: a source that does not exist, a damaged archive or review, or another number of
        reviews than `per_class`.
    """
    source = _source(config)
    fingerprint = {
        "task": "text",
        "format": FORMAT,
        "seed": config.seed,
        "per_class": per_class,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        final_folder = cache.folder_of("text", fingerprint)
        _logger.info("Preparing Text: reading %s; once, into %s", source.path, final_folder)
        reviews = tqdm(_reviews(source), "Text", 4 * per_class, unit=" reviews", disable=None)
        _build(folder, reviews, origin=source.path, per_class=per_class, seed=config.seed)

    prepared = cache.prepared("text", fingerprint, build)
    return Task(
        name="text",
        splits={
            split: Split.open(prepared.folder, split, first_id=FIRST_ID)
            for split in ("train", "valid", "test")
        },
        sha256=prepared.sha256,
        decode=decode,
        folder=prepared.folder,
        class_names=CLASS_NAMES,
    )


def decode(ids: npt.NDArray[np.integer]) -> str:
    """The text of token ids, padding dropped; a character that was cut in half becomes U+FFFD."""
    ids = np.asarray(ids)
    return (ids[ids >= FIRST_ID] - FIRST_ID).astype(np.uint8).tobytes().decode(errors="replace")


def _source(config: DataConfig) -> RawFiles | PreparedByTfds:
    if sources.from_tfds(config, task="Text", needs="the IMDb reviews"):
        return PreparedByTfds.find(config.dir, TFDS_NAME, task="Text")
    below = cache.user_path(config.dir)
    for path, is_there in (
        (below / ROOT, (below / ROOT).is_dir()),
        (below, (below / "train" / "pos").is_dir()),
        (below / ARCHIVE, (below / ARCHIVE).is_file()),
        (below, below.name == ARCHIVE and below.is_file()),
    ):
        if is_there:
            return RawFiles(path, ROOT, _SUBFOLDERS, name=r"\d+_\d+\.txt")
    raise FileNotFoundError(
        f"Text needs the IMDb reviews: neither {ROOT} nor {ARCHIVE} is under {below}. Download"
        f" {URL} (84 MB) into it, or set --config.data.source=tfds."
    )


def _reviews(source: RawFiles | PreparedByTfds) -> Iterator[Review]:
    if isinstance(source, RawFiles):
        for name, text in source.read():
            split, sentiment, _ = name.split("/")
            yield Review(f"{name} of {source.path}", split, CLASS_NAMES.index(sentiment), text)
    else:
        for split in ("train", "test"):
            for row, example in enumerate(source.examples(split, ("text", "label"))):
                origin = f"Example {row} of {split} in {source.path}"
                yield Review(origin, split, int(example["label"]), example["text"])


def _build(
    folder: Path, reviews: Iterable[Review], *, origin: Path, per_class: int, seed: int
) -> None:
    splits: dict[str, list[tuple[bytes, int]]] = {"train": [], "test": []}
    for review in reviews:
        splits[review.split].append((_stripped(review), review.label))

    counts = Counter(
        f"{split}/{CLASS_NAMES[label]}" for split in splits for _, label in splits[split]
    )
    if set(counts.values()) != {per_class} or len(counts) != len(_SUBFOLDERS):
        found = ", ".join(f"{counts[name[:-1]]:,} in {name[:-1]}" for name in _SUBFOLDERS)
        raise ValueError(
            f"Text needs {per_class:,} reviews of either class in train and in test; {origin} has"
            f" {found}. {_ANEW}"
        )

    for split, rows in splits.items():
        rows.sort(key=lambda row: (hashlib.sha256(row[0]).digest(), row[1]))
        texts = [text for text, _ in rows]
        labels = np.array([label for _, label in rows], np.int32)
        if split == "train":
            is_valid = held_out(texts, labels, per_class // 10, seed)
            _save(folder, "valid", itertools.compress(texts, is_valid), labels[is_valid])
            texts, labels = list(itertools.compress(texts, ~is_valid)), labels[~is_valid]
        _save(folder, split, texts, labels)


def _save(folder: Path, split: str, texts: Iterable[bytes], labels: npt.NDArray[np.int32]) -> None:
    Split(Sequences.of(list(texts), first_id=FIRST_ID), labels).save(folder, split)


def _stripped(review: Review) -> bytes:
    """The text without white space around it, as tfds has it; checked."""
    try:
        review.text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{review.origin} is not UTF-8 text: byte {error.start + 1} is"
            f" 0x{review.text[error.start]:02x}. {_ANEW}"
        ) from None
    if not (text := review.text.strip()):
        raise ValueError(f"{review.origin} is empty. {_ANEW}")
    return text
