"""IMDb's reviews (Maas et al. 2011), read from the folder `aclImdb` or its archive."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from dataprep.archives import RawFiles, decode

ROOT = "aclImdb"
ARCHIVE = "aclImdb_v1.tar.gz"
URL = f"https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE}"
CLASS_NAMES = ("neg", "pos")
SUBFOLDERS = tuple(f"{split}/{name}/" for split in ("train", "test") for name in CLASS_NAMES)
ADVICE = f"Unpack a fresh {ARCHIVE}."


class Review(NamedTuple):
    """A review as its file has it, with whitespace at both ends."""

    origin: str  # in error messages
    id: str  # such as "train/pos/3_9"
    split: str  # "train" or "test"
    label: int  # index in `CLASS_NAMES`
    text: str


def find(folder: Path, title: str, advice: str) -> RawFiles:
    """Finds the reviews; `folder` is `aclImdb` or a parent, the archive, or the folder of the archive.

    Raises:
      FileNotFoundError: They are missing. The message begins with the `title` of the task that needs them
        and ends with `advice`.
    """
    if source := RawFiles.find(folder, ROOT, ARCHIVE, SUBFOLDERS, r"\d+_\d+\.txt"):
        return source
    raise FileNotFoundError(
        f"{title} needs the IMDb reviews: neither {ROOT} nor {ARCHIVE} is in {folder}. Download"
        f" {URL} (84 MB){advice}"
    )


def read(source: RawFiles) -> Iterator[Review]:
    """Yields all reviews, in arbitrary order; raises ValueError if one is empty or not UTF-8."""
    for name, content in source.read():
        split, label, _ = name.split("/")
        origin = f"{name} of {source.path}"
        text = decode(content, origin, ADVICE)
        if not text.strip():
            raise ValueError(f"{origin} is empty. {ADVICE}")
        yield Review(origin, name.removesuffix(".txt"), split, CLASS_NAMES.index(label), text)
