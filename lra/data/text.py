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
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import cache, imdb
from dataprep.archives import RawFiles
from dataprep.tfds_reader import PreparedByTfds
from lra.data.task import DataConfig, Task, TaskInfo, save_balanced_splits

FIRST_ID = 1  # token id of byte 0; id 0 is padding

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1


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
    source: RawFiles | PreparedByTfds
    if config.choose_source("Text", ("files", "tfds"), f"the IMDb reviews, {imdb.URL}") == "tfds":
        source = PreparedByTfds.find(config.dir, imdb.TFDS_NAME, task="Text")
    else:
        source = imdb.find(cache.user_path(config.dir), "Text")
    fingerprint = {
        "task": "text",
        "format": FORMAT,
        "seed": config.seed,
        "per_class": per_class,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        examples: dict[str, list[tuple[bytes, int]]] = {split: [] for split in imdb.SPLITS}
        reviews = imdb.read_reviews(source)
        for review in tqdm(reviews, "Text", 4 * per_class, unit=" reviews", disable=None):
            examples[review.split].append((review.text, review.label))
        for own in examples.values():
            own.sort(key=lambda row: (hashlib.sha256(row[0]).digest(), row[1]))
        sizes = dict.fromkeys(examples, per_class)
        save_balanced_splits(
            folder, examples, sizes, imdb.CLASS_NAMES, config.seed, str(source.path)
        )

    prepared = cache.prepared("text", fingerprint, build, f"Text: reading {source.path}")
    return Task.open("text", prepared, decode, first_id=FIRST_ID, class_names=imdb.CLASS_NAMES)


def decode(ids: npt.NDArray[np.integer]) -> str:
    """Converts token ids to text; skips padding, and a truncated character becomes U+FFFD."""
    ids = np.asarray(ids)
    return (ids[ids >= FIRST_ID] - FIRST_ID).astype(np.uint8).tobytes().decode(errors="replace")


INFO = TaskInfo(
    vocab_size=FIRST_ID + 256,
    num_classes=len(imdb.CLASS_NAMES),
    load=load,
    sizes={"train": 22_500, "valid": 2_500, "test": 25_000},
    total_steps=20_000,
    official_sha256="6edd5d57f264ec306a0d5092e30af2c1e73c09f0591625d4190fa439a655a04f",
)
