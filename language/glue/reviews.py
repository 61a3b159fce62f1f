"""IMDb's reviews (Maas et al. 2011) as a task; see `dataprep.imdb`."""

import hashlib
import itertools
from pathlib import Path

import numpy as np

from dataprep import imdb
from dataprep.archives import RawFiles
from dataprep.holdout import held_out
from language.glue.tables import TaskSplits
from language.glue.tasks import GlueTask
from language.tasks.examples import Example


def find(task: GlueTask, folder: Path) -> RawFiles:
    """Finds the reviews; `folder` is `aclImdb` or a parent, the archive, or the folder of the archive."""
    return imdb.find(folder, task.title)


def read(task: GlueTask, source: RawFiles, seed: int) -> TaskSplits:
    """Returns the reviews as splits; `seed` selects a tenth of the training reviews for validation.

    Reviews are sorted by hash, so the order is the same for a folder and an archive.
    """
    splits = {
        split: [
            Example(review.id, (review.text.decode().strip(),), review.label)
            for review in imdb.read_reviews(source, split)
        ]
        for split in ("train", "test")
    }
    for split, examples in splits.items():
        for number, label in enumerate(task.labels):
            count = sum(example.label == number for example in examples)
            if count < (2 if split == "train" else 1):  # one is held out for validation
                raise ValueError(
                    f"{source.path} has too few reviews in {split}/{label}: {count}. {imdb.ADVICE}"
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
