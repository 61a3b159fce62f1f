"""Splits of IMDb's reviews (Maas et al. 2011)."""

import hashlib
import itertools

import numpy as np

from dataprep import imdb
from dataprep.archives import RawFiles
from dataprep.holdout import held_out
from language.tasks.examples import Example


def read(source: RawFiles, seed: int) -> dict[str, list[Example]]:
    """Returns the reviews as splits; `seed` selects a tenth of the training reviews for validation.

    Reviews are sorted by hash, so the order is the same for a folder and an archive.
    """
    splits = {
        split: [
            Example(
                texts=(review.text.decode().strip(),),
                label=imdb.CLASS_NAMES[review.label],
                where=f"{review.id} of {source.path}",
                id=review.id,
            )
            for review in imdb.read_reviews(source, split)
        ]
        for split in ("train", "test")
    }
    for split, examples in splits.items():
        for example in examples:
            if not example.texts[0]:  # white space beyond ASCII
                raise ValueError(f"{example.where} is empty. {imdb.ADVICE}")
        for name in imdb.CLASS_NAMES:
            count = sum(example.label == name for example in examples)
            if count < (2 if split == "train" else 1):  # one is held out for validation
                raise ValueError(
                    f"{source.path} has too few reviews in {split}/{name}: {count}. {imdb.ADVICE}"
                )
        examples.sort(
            key=lambda row: (hashlib.sha256(row.texts[0].encode()).digest(), row.label, row.id)
        )
    training = splits["train"]
    labels = np.array([imdb.CLASS_NAMES.index(example.label) for example in training])
    per_class = max(1, int(np.bincount(labels).min()) // 10)
    is_valid = held_out((row.texts[0].encode() for row in training), labels, per_class, seed)
    return {
        "train": list(itertools.compress(training, ~is_valid)),
        "valid": list(itertools.compress(training, is_valid)),
        "test": splits["test"],
    }
