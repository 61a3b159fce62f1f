"""Image: classify a grayscale CIFAR-10 image as a sequence of pixels.

The images are read from the folder `cifar-10-batches-bin`, from `cifar-10-binary.tar.gz` or from
tensorflow-datasets; the prepared data are identical. The pickled "python version" is not supported.

Source: google-research/long-range-arena, image/input_pipeline.py at cd31e5c: tokens are the gray
values 0 to 255 without an offset, row by row.
Differs: 500 training images per class are held out for validation; the original holds out
the last tenth in the order of tensorflow-datasets. All tokens are real; the original masks black
pixels (as `data.zero_is_padding` does).
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dataprep import cache
from dataprep.archives import RawFiles
from dataprep.holdout import held_out
from dataprep.tfds_reader import PreparedByTfds
from lra.data.task import DataConfig, Sequences, Split, Task, image_to_text

VOCAB_SIZE = 256
SHAPE = (32, 32)
CLASS_NAMES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CLASS_NAMES += ("dog", "frog", "horse", "ship", "truck")
SIZES: Mapping[str, int] = {"train": 45_000, "valid": 5_000, "test": 10_000}
ROOT = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"
# Hash of the data prepared from the official files with seed 0.
OFFICIAL_SHA256 = "293cd03ac66c89517f3c95924115556c5c08858ace45828803ee1ea7b4cab9f6"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
TFDS_NAME = "cifar10"
FILES: Mapping[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1

_ADVICE = f"Unpack {ARCHIVE} again, or prepare the dataset again with tfds."
_PICKLES = ("cifar-10-batches-py", "cifar-10-python.tar.gz")
_PIXELS = SHAPE[0] * SHAPE[1]
_RECORD = 1 + 3 * _PIXELS  # bytes: a label, then the red, the green and the blue plane

# Contributions of each red, green and blue byte to the gray value, [256] each.
_RED, _GREEN, _BLUE = (
    np.arange(256, dtype=np.float32) * np.float32(1 / 255) * np.float32(weight)
    for weight in (0.2989, 0.5870, 0.1140)
)


class Images(NamedTuple):
    """Grayscale images and their classes."""

    pixels: npt.NDArray[np.uint8]  # [N, 1024]
    labels: npt.NDArray[np.int32]  # [N]


def load(config: DataConfig, *, images_per_file: int = 10_000) -> Task:
    """Opens the task Image; prepares the data if they are missing.

    A tenth of the training images of each class is held out for validation. The images keep the order
    of the files. `source` is "files", "auto" (the same) or "tfds", for which `dir` is optional. Each of
    the five training files and the test file has `images_per_file` images.

    Raises:
      FileNotFoundError: The images are missing.
      ValueError: The source is unknown, the archive is corrupt, or a file has an invalid size or label.
    """
    source = _find_source(config)
    fingerprint = {
        "task": "image",
        "format": FORMAT,
        "seed": config.seed,
        "images_per_file": images_per_file,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        if isinstance(source, RawFiles):
            images = _read_files(source, images_per_file)
        else:
            images = _read_tfds(source, images_per_file)
        train = images["train"]
        is_valid = held_out(
            map(bytes, train.pixels), train.labels, images_per_file // 20, config.seed
        )
        _save(folder, "train", train.pixels[~is_valid], train.labels[~is_valid])
        _save(folder, "valid", train.pixels[is_valid], train.labels[is_valid])
        _save(folder, "test", *images["test"])

    prepared = cache.prepared("image", fingerprint, build, f"Image: reading {source.path}")
    decode = functools.partial(image_to_text, shape=SHAPE)
    return Task.open("image", prepared, decode, class_names=CLASS_NAMES, image_shape=SHAPE)


def to_gray(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Converts RGB images [..., 3] to grayscale [...].

        gray = floor(255.5 (0.2989 R + 0.5870 G + 0.1140 B)), with R = red / 255 and so on

    The channels are scaled, weighted and added in float32 in this order.

    Source: tf.image.rgb_to_grayscale of TensorFlow 2.21; the results agree for all 256**3 colors.
    """
    gray = _RED[rgb[..., 0]] + _GREEN[rgb[..., 1]]
    gray += _BLUE[rgb[..., 2]]
    gray *= np.float32(255.5)
    return gray.astype(np.uint8)


def _find_source(config: DataConfig) -> RawFiles | PreparedByTfds:
    if config.choose_source("Image", "tfds", f"the binary version of CIFAR-10, {URL}") == "tfds":
        return PreparedByTfds.find(config.dir, TFDS_NAME, task="Image")
    folder = cache.user_path(config.dir)
    name = r"(data_batch_[1-5]|test_batch)\.bin"
    if source := RawFiles.find(folder, ROOT, ARCHIVE, ("",), name):
        return source
    pickles = [name for name in _PICKLES if (folder / name).exists()]
    hint = f" ({pickles[0]} is, but pickles are not read)" if pickles else ""
    raise FileNotFoundError(
        f"Image needs the binary version of CIFAR-10: neither {ROOT} nor {ARCHIVE} is in"
        f" {folder}{hint}. Download {URL} (170 MB) to that folder, or set --config.data.source=tfds."
    )


def _read_files(source: RawFiles, images_per_file: int) -> dict[str, Images]:
    batches: dict[str, Images] = {}
    for name, content in source.read():
        if len(content) != images_per_file * _RECORD:
            raise ValueError(
                f"{name} of {source.path} has {len(content):,} bytes; {images_per_file:,} images of"
                f" {_RECORD:,} bytes need {images_per_file * _RECORD:,}. {_ADVICE}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
        planes = records[:, 1:].reshape(-1, 3, _PIXELS)
        labels = _validate_labels(records[:, 0], f"{name} of {source.path}")
        batches[name] = Images(to_gray(planes.swapaxes(1, 2)), labels)
    missing = [name for names in FILES.values() for name in names if name not in batches]
    if missing:
        raise FileNotFoundError(f"{source.path} lacks {', '.join(missing)}. {_ADVICE}")
    return {
        split: Images(
            np.concatenate([batches[name].pixels for name in names]),
            np.concatenate([batches[name].labels for name in names]),
        )
        for split, names in FILES.items()
    }


def _read_tfds(source: PreparedByTfds, images_per_file: int) -> dict[str, Images]:
    """Reads the images and sorts them into the order of the original files; tfds shuffles them."""
    images = {}
    for split, names in FILES.items():
        rows = sorted(
            (example["id"], to_gray(example["image"]).tobytes(), int(example["label"]))
            for example in source.examples(split, ("id", "image", "label"))
        )
        if len(rows) != images_per_file * len(names):
            raise ValueError(
                f"{source.path} has {len(rows):,} images in {split}; CIFAR-10 has"
                f" {images_per_file * len(names):,}. Prepare the dataset again."
            )
        pixels = np.frombuffer(b"".join(content for _, content, _ in rows), np.uint8)
        labels = _validate_labels(
            np.array([label for *_, label in rows]), f"{split} in {source.path}"
        )
        images[split] = Images(pixels.reshape(-1, _PIXELS), labels)
    return images


def _validate_labels(labels: npt.NDArray[np.integer], origin: str) -> npt.NDArray[np.int32]:
    wrong = np.flatnonzero(labels >= len(CLASS_NAMES))
    if len(wrong):
        raise ValueError(
            f"Image {wrong[0]} of {origin} has the label {labels[wrong[0]]}; CIFAR-10 has 0 to"
            f" {len(CLASS_NAMES) - 1}. {_ADVICE}"
        )
    return labels.astype(np.int32)


def _save(
    folder: Path, split: str, pixels: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]
) -> None:
    offsets = _PIXELS * np.arange(len(pixels) + 1, dtype=np.int64)
    Split(Sequences(pixels.reshape(-1), offsets), labels).save(folder, split)
