"""Reads IMDb's reviews (Maas et al. 2011) from the folder `aclImdb` or its archive."""

import hashlib
import itertools
from pathlib import Path

import numpy as np

from dataprep.archives import RawFiles, decode
from dataprep.holdout import held_out
from language.glue.tables import TaskSplits
from language.glue.tasks import GlueTask
from language.tasks.examples import Example

ARCHIVE = "aclImdb_v1.tar.gz"
ROOT = "aclImdb"

_UNPACK_AGAIN = f"Unpack a fresh {ARCHIVE}."


def find(task: GlueTask, folder: Path) -> RawFiles:
    """Finds the reviews; `folder` is `aclImdb` or a parent, the archive, or the folder of the archive."""
    subfolders = tuple(f"{split}/{name}/" for split in ("train", "test") for name in task.labels)
    if source := RawFiles.find(folder, ROOT, ARCHIVE, subfolders, r"\d+_\d+\.txt"):
        return source
    raise FileNotFoundError(
        f"{task.title} needs the reviews: neither {ROOT} nor {ARCHIVE} is in {folder}. Download"
        f" https://ai.stanford.edu/~amaas/data/sentiment/{ARCHIVE} (84 MB), and set"
        " --config.data.dir to its path."
    )


def read(task: GlueTask, source: RawFiles, seed: int) -> TaskSplits:
    """Returns the reviews as splits; `seed` selects a tenth of the training reviews for validation.

    Reviews are sorted by hash, so the order is the same for a folder and an archive.
    """
    splits: dict[str, list[Example]] = {"train": [], "test": []}
    for name, content in source.read():
        split, label, _ = name.split("/")
        text = decode(content, f"{name} of {source.path}", _UNPACK_AGAIN).strip()
        if not text:
            raise ValueError(f"{name} of {source.path} is empty. {_UNPACK_AGAIN}")
        id = name.removesuffix(".txt")
        splits[split].append(Example(id, (text,), task.labels.index(label)))
    for split, examples in splits.items():
        for number, label in enumerate(task.labels):
            count = sum(example.label == number for example in examples)
            if count < (2 if split == "train" else 1):  # one is held out for validation
                raise ValueError(
                    f"{source.path} has too few reviews in {split}/{label}: {count}. {_UNPACK_AGAIN}"
                )
        examples.sort(
            key=lambda row: (hashlib.sha256(row.texts[0].encode()).digest(), row.label, row.id)
        )

    training = splits["train"]
    labels = np.array([example.label for example in training], np.int64)
    per_class = max(1, int(np.bincount(labels).min()) // 10)
    is_valid = held_out((row.texts[0].encode() for row in training), labels, per_class, seed)
    return TaskSplits(
        {
            "train": list(itertools.compress(training, ~is_valid)),
            "valid": list(itertools.compress(training, is_valid)),
            "test": splits["test"],
        },
        {},
    )
