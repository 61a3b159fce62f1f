"""IMDb's reviews (Maas et al. 2011), from the folder `aclImdb` or its archive."""

import hashlib
import itertools
from pathlib import Path

import numpy as np

from harness.held_out import held_out
from harness.raw_files import RawFiles
from language.glue.tables import Example, Examples
from language.glue.tasks import GlueTask

ARCHIVE = "aclImdb_v1.tar.gz"
ROOT = "aclImdb"

_ANEW = f"Unpack a fresh {ARCHIVE}."


def find(task: GlueTask, folder: Path) -> RawFiles:
    """The reviews in `folder`: that of the reviews, the one above it or the archive's, or the archive.

    Raises:
      FileNotFoundError: They are not there: what was looked for, and where.
    """
    subfolders = tuple(f"{split}/{name}/" for split in ("train", "test") for name in task.labels)
    for path, is_there in (
        (folder / ROOT, (folder / ROOT).is_dir()),
        (folder, (folder / subfolders[0]).is_dir()),
        (folder / ARCHIVE, (folder / ARCHIVE).is_file()),
        (folder, folder.name == ARCHIVE and folder.is_file()),
    ):
        if is_there:
            return RawFiles(path, ROOT, subfolders, name=r"\d+_\d+\.txt")
    raise FileNotFoundError(
        f"{task.title} needs the reviews: neither {ROOT} nor {ARCHIVE} is in {folder}. Download"
        f" https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE} (84 MB), and set"
        " --config.data.dir to where it lies."
    )


def read(task: GlueTask, source: RawFiles, seed: int) -> Examples:
    """Reads the reviews, and holds a tenth of the training's out for validation.

    They are ordered by their hashes, so the same from a folder and an archive.

    Args:
      task: IMDb's row.
      source: what `find` found.
      seed: another one holds out others.

    Raises:
      ValueError: A review is empty or no UTF-8 text, a folder lacks reviews, or the archive is damaged.
      OSError: A file cannot be read.
    """
    splits: dict[str, list[Example]] = {"train": [], "test": []}
    for name, content in source.read():
        split, label, _ = name.split("/")
        text = _text(content, f"{name} of {source.path}")
        id = name.removesuffix(".txt")
        splits[split].append(Example(id, (text,), task.labels.index(label)))
    for split, examples in splits.items():
        for number, label in enumerate(task.labels):
            if not any(example.label == number for example in examples):
                raise ValueError(f"{source.path} has no review in {split}/{label}. {_ANEW}")
        examples.sort(key=lambda row: (_digest(row), row.label, row.id))

    training = splits["train"]
    labels = np.array([example.label for example in training], np.int64)
    per_class = max(1, int(np.bincount(labels).min()) // 10)
    is_valid = held_out((row.texts[0].encode() for row in training), labels, per_class, seed)
    return Examples(
        {
            "train": list(itertools.compress(training, ~is_valid)),
            "valid": list(itertools.compress(training, is_valid)),
            "test": splits["test"],
        },
        {},
    )


def _text(content: bytes, place: str) -> str:
    """The review without white space around it."""
    try:
        text = content.decode().strip()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{place} is not UTF-8 text: byte {error.start + 1} is 0x{content[error.start]:02x}."
            f" {_ANEW}"
        ) from None
    if not text:
        raise ValueError(f"{place} is empty. {_ANEW}")
    return text


def _digest(example: Example) -> bytes:
    return hashlib.sha256(example.texts[0].encode()).digest()
