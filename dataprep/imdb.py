"""Movie reviews of IMDb (Maas et al. 2011): the folder `aclImdb`, its archive, or tensorflow-datasets."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dataprep.archives import RawFiles, decode
from dataprep.tfds_reader import PreparedByTfds

CLASS_NAMES = ("neg", "pos")
URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
TFDS_NAME = "imdb_reviews/plain_text"
ADVICE = "Unpack aclImdb_v1.tar.gz again, or prepare the dataset again with tfds."


class Review(NamedTuple):
    """A review; the text is valid UTF-8 without white space at both ends, and not empty."""

    id: str  # such as train/pos/0_9, or the row in tensorflow-datasets
    text: bytes
    label: int  # in `CLASS_NAMES`


def find(folder: Path, task: str) -> RawFiles:
    """Finds the reviews in a folder, or raises FileNotFoundError; see `RawFiles.find`."""
    subfolders = tuple(f"{split}/{name}/" for split in ("train", "test") for name in CLASS_NAMES)
    needs = f"{task} needs the IMDb reviews"
    return RawFiles.find(folder, needs, URL, "aclImdb", subfolders, r"\d+_\d+\.txt")


def read_reviews(source: RawFiles | PreparedByTfds, split: str) -> Iterator[Review]:
    """Yields the reviews of the split "train" or "test", in arbitrary order.

    Raises:
      ValueError: A review is empty or not UTF-8, or the archive or dataset is corrupt.
      OSError: A file cannot be read.
    """
    for id, content, label in _contents(source, split):
        where = f"{id} of {source.path}"
        decode(content, where, ADVICE)  # validates the text
        if not (text := content.strip()):  # as in tfds
            raise ValueError(f"{where} is empty. {ADVICE}")
        yield Review(id.removesuffix(".txt"), text, label)


def _contents(source: RawFiles | PreparedByTfds, split: str) -> Iterator[tuple[str, bytes, int]]:
    if isinstance(source, PreparedByTfds):
        for row, example in enumerate(source.examples(split, ("text", "label"))):
            yield f"Example {row} of {split}", example["text"], int(example["label"])
        return
    subfolders = tuple(name for name in source.subfolders if name.startswith(split))
    for name, content in dataclasses.replace(source, subfolders=subfolders).read():
        yield name, content, CLASS_NAMES.index(name.split("/")[1])
