"""Movie reviews of IMDb (Maas et al. 2011): the folder `aclImdb`, its archive, or tensorflow-datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dataprep.archives import RawFiles, decode
from dataprep.tfds_reader import PreparedByTfds

SPLITS = ("train", "test")
CLASS_NAMES = ("neg", "pos")
URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
TFDS_NAME = "imdb_reviews/plain_text"
ADVICE = "Unpack aclImdb_v1.tar.gz again, or prepare the dataset again with tfds."


class Review(NamedTuple):
    """A review; the text is valid UTF-8 without white space at both ends, and not empty."""

    split: str  # in `SPLITS`
    id: str  # such as train/pos/0_9, or the row in tensorflow-datasets
    text: bytes
    label: int  # in `CLASS_NAMES`


def find(folder: Path, task: str) -> RawFiles:
    """Finds the reviews in a folder, or raises FileNotFoundError; see `RawFiles.find`."""
    subfolders = tuple(f"{split}/{name}/" for split in SPLITS for name in CLASS_NAMES)
    needs = f"{task} needs the IMDb reviews"
    return RawFiles.find(folder, needs, URL, "aclImdb", subfolders, r"\d+_\d+\.txt")


def read_reviews(source: RawFiles | PreparedByTfds) -> Iterator[Review]:
    """Yields all reviews in arbitrary order; an archive is read once.

    Raises:
      ValueError: A review is empty or not UTF-8, or the archive or dataset is corrupt.
      OSError: A file cannot be read.
    """
    for split, id, content, label in _contents(source):
        where = f"{id} of {source.path}"
        decode(content, where, ADVICE)  # validates the text
        if not (text := content.strip()):  # as in tfds
            raise ValueError(f"{where} is empty. {ADVICE}")
        yield Review(split, id.removesuffix(".txt"), text, label)


def _contents(source: RawFiles | PreparedByTfds) -> Iterator[tuple[str, str, bytes, int]]:
    if isinstance(source, RawFiles):
        for name, content in source.read():
            split, class_name, _ = name.split("/")
            yield split, name, content, CLASS_NAMES.index(class_name)
        return
    for split in SPLITS:
        for row, example in enumerate(source.examples(split, ("text", "label"))):
            yield split, f"Example {row} of {split}", example["text"], int(example["label"])
