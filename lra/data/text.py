"""Text: classify an IMDb movie review (Maas et al. 2011) as positive or negative, byte by byte.

The reviews are read from the folder `aclImdb`, from `aclImdb_v1.tar.gz` or from tensorflow-datasets;
the prepared data are identical.

Source: google-research/long-range-arena, text_classification/input_pipeline.py at cd31e5c, which
reads `imdb_reviews` of tensorflow-datasets: id = UTF-8 byte + 1, HTML kept, white space stripped
from both ends.
Differs: 1,250 training reviews per class are held out for validation; the original validates
on the test set.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import archives, cache
from dataprep.archives import RawFiles
from dataprep.holdout import held_out
from dataprep.tfds_reader import PreparedByTfds
from lra.data.task import DataConfig, Sequences, Split, Task

VOCAB_SIZE = 257
FIRST_ID = 1  # token id of byte 0; id 0 is padding
CLASS_NAMES = ("neg", "pos")
SIZES = {"train": 22_500, "valid": 2_500, "test": 25_000}
ROOT = "aclImdb"
ARCHIVE = "aclImdb_v1.tar.gz"
# Hash of the data prepared from the official files with seed 0.
OFFICIAL_SHA256 = "6edd5d57f264ec306a0d5092e30af2c1e73c09f0591625d4190fa439a655a04f"
URL = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}"
TFDS_NAME = "imdb_reviews/plain_text"

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1

_ADVICE = f"Unpack {ARCHIVE} again, or prepare the dataset again with tfds."
_SUBFOLDERS = tuple(f"{split}/{name}/" for split in ("train", "test") for name in CLASS_NAMES)


class Review(NamedTuple):
    """A review; `origin` is the name of the review in error messages."""

    origin: str
    split: str
    label: int
    text: bytes


def load(config: DataConfig, *, per_class: int = 12_500) -> Task:
    """Opens the task Text; prepares the data if they are missing.

    A tenth of the training reviews is held out for validation. Reviews are stored in full, sorted by a
    hash, so that the first rows of a split are a random sample. `source` is "files", "auto" (the same) or
    "tfds", for which `dir` is optional. Training and test set have `per_class` reviews per class.

    Raises:
      FileNotFoundError: The reviews are missing.
      ValueError: The source is unknown, the archive or a review is corrupt, or a class does not have
        `per_class` reviews.
    """
    source = _find_source(config)
    fingerprint = {
        "task": "text",
        "format": FORMAT,
        "seed": config.seed,
        "per_class": per_class,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        reviews = tqdm(_reviews(source), "Text", 4 * per_class, unit=" reviews", disable=None)
        _build(folder, reviews, origin=source.path, per_class=per_class, seed=config.seed)

    prepared = cache.prepared("text", fingerprint, build, f"Text: reading {source.path}")
    return Task.open("text", prepared, decode, first_id=FIRST_ID, class_names=CLASS_NAMES)


def decode(ids: npt.NDArray[np.integer]) -> str:
    """Converts token ids to text; skips padding, and a truncated character becomes U+FFFD."""
    ids = np.asarray(ids)
    return (ids[ids >= FIRST_ID] - FIRST_ID).astype(np.uint8).tobytes().decode(errors="replace")


def _find_source(config: DataConfig) -> RawFiles | PreparedByTfds:
    if config.choose_source("Text", "tfds", f"the IMDb reviews, {URL}") == "tfds":
        return PreparedByTfds.find(config.dir, TFDS_NAME, task="Text")
    folder = cache.user_path(config.dir)
    if source := RawFiles.find(folder, ROOT, ARCHIVE, _SUBFOLDERS, r"\d+_\d+\.txt"):
        return source
    raise FileNotFoundError(
        f"Text needs the IMDb reviews: neither {ROOT} nor {ARCHIVE} is in {folder}. Download"
        f" {URL} (84 MB) to that folder, or set --config.data.source=tfds."
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
        archives.decode(review.text, review.origin, _ADVICE)  # validates the text
        text = review.text.strip()  # as in tfds
        if not text:
            raise ValueError(f"{review.origin} is empty. {_ADVICE}")
        splits[review.split].append((text, review.label))

    counts = Counter(
        f"{split}/{CLASS_NAMES[label]}" for split in splits for _, label in splits[split]
    )
    if set(counts.values()) != {per_class} or len(counts) != len(_SUBFOLDERS):
        found = ", ".join(f"{counts[name[:-1]]:,} in {name[:-1]}" for name in _SUBFOLDERS)
        raise ValueError(
            f"Text needs {per_class:,} reviews per class in train and in test; {origin} has {found}."
            f" {_ADVICE}"
        )

    for split, rows in splits.items():
        rows.sort(key=lambda row: (hashlib.sha256(row[0]).digest(), row[1]))
        texts = [text for text, _ in rows]
        labels = np.array([label for _, label in rows], np.int32)
        if split == "train":
            is_valid = held_out(texts, labels, per_class // 10, seed)
            valid_texts = list(itertools.compress(texts, is_valid))
            Split(Sequences.from_bytes(valid_texts), labels[is_valid]).save(folder, "valid")
            texts, labels = list(itertools.compress(texts, ~is_valid)), labels[~is_valid]
        Split(Sequences.from_bytes(texts), labels).save(folder, split)
