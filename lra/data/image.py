"""Image: which of ten things does a small image show? CIFAR-10, grey, pixel by pixel.

Read from the folder `cifar-10-batches-bin`, from `cifar-10-binary.tar.gz`, or through
tensorflow-datasets; the prepared data are the same bytes from each. The pickles of its
"python version" are not read.

Source: google-research/long-range-arena, image/input_pipeline.py at cd31e5c: tokens are the grey
values 0 to 255 without an offset, row by row.
Differs from it: 500 training images a class are held out for validation, where the original takes
the last tenth in the order of tensorflow-datasets; every token is real, where the original masks
black pixels (`data.zero_is_padding` does).
"""

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness import cache
from harness.held_out import held_out
from harness.raw_files import RawFiles
from harness.tfds_reader import PreparedByTfds
from lra.data import pictures, sources
from lra.data.task import DataConfig, Sequences, Split, Task

VOCAB_SIZE = 256
SHAPE = (32, 32)
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SIZES: Mapping[str, int] = {"train": 45_000, "valid": 5_000, "test": 10_000}
ROOT = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"
# Of what `load` prepares from the official data with seed 0: a report may call these official.
OFFICIAL_SHA256 = "293cd03ac66c89517f3c95924115556c5c08858ace45828803ee1ea7b4cab9f6"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
TFDS_NAME = "cifar10"
FILES: Mapping[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}

# Part of every fingerprint: raise it when the same files give other data.
FORMAT = 1

_ANEW = f"Unpack a fresh {ARCHIVE}, or prepare it anew with tfds."
_PICKLES = ("cifar-10-batches-py", "cifar-10-python.tar.gz")
_PIXELS = SHAPE[0] * SHAPE[1]
_RECORD = 1 + 3 * _PIXELS  # bytes: a label, then the red, the green and the blue plane

# What a byte of red, green and blue adds to the grey value, [256] each.
_RED, _GREEN, _BLUE = (
    np.arange(256, dtype=np.float32) * np.float32(1 / 255) * np.float32(weight)
    for weight in (0.2989, 0.5870, 0.1140)
)

_logger = logging.getLogger(__name__)


class Images(NamedTuple):
    """Grey images and what they show."""

    grey: npt.NDArray[np.uint8]  # [N, 1024]
    labels: npt.NDArray[np.int32]  # [N]


def load(config: DataConfig, *, images_per_file: int = 10_000) -> Task:
    """Opens the images, preparing them first where they are not there yet.

    A tenth of the training images, as many of every class, is held out for validation. The order
    is that of the files.

    Args:
      config: `source` is "files" (the folder or the archive in `dir`), "tfds" (prepared in `dir`,
        or where tfds keeps its data), or "auto": files.
      images_per_file: images in each of the five training files and in the test file.

    Raises:
      FileNotFoundError: there are no images where `config` says.
      ValueError: a source that does not exist, a damaged archive, a file of another size, or a
        label that is none.
    """
    source = _source(config)
    fingerprint = {
        "task": "image",
        "format": FORMAT,
        "seed": config.seed,
        "images_per_file": images_per_file,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        final_folder = cache.folder_of("image", fingerprint)
        _logger.info("Preparing Image: reading %s; once, into %s", source.path, final_folder)
        if isinstance(source, RawFiles):
            images = _read_files(source, images_per_file)
        else:
            images = _read_tfds(source, images_per_file)
        train = images["train"]
        is_valid = held_out(
            map(bytes, train.grey), train.labels, images_per_file // 20, config.seed
        )
        _save(folder, "train", train.grey[~is_valid], train.labels[~is_valid])
        _save(folder, "valid", train.grey[is_valid], train.labels[is_valid])
        _save(folder, "test", *images["test"])

    prepared = cache.prepared("image", fingerprint, build)
    return Task(
        name="image",
        splits={split: Split.open(prepared.folder, split) for split in ("train", "valid", "test")},
        sha256=prepared.sha256,
        decode=functools.partial(pictures.as_text, shape=SHAPE),
        folder=prepared.folder,
        class_names=CLASS_NAMES,
        image_shape=SHAPE,
    )


def to_grey(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Grey values [...] of colours [..., 3].

        grey = floor(255.5 (0.2989 R + 0.5870 G + 0.1140 B)), with R = red / 255 and so on

    in float32, each colour scaled, weighted and added in this order.

    Source: tf.image.rgb_to_grayscale of TensorFlow 2.21; equal to it for all 256**3 colours.
    """
    grey = _RED[rgb[..., 0]] + _GREEN[rgb[..., 1]]
    grey += _BLUE[rgb[..., 2]]
    grey *= np.float32(255.5)
    return grey.astype(np.uint8)


def _source(config: DataConfig) -> RawFiles | PreparedByTfds:
    if sources.from_tfds(config, task="Image", needs="the binary version of CIFAR-10"):
        return PreparedByTfds.find(config.dir, TFDS_NAME, task="Image")
    below = cache.user_path(config.dir)
    for path, is_there in (
        (below / ROOT, (below / ROOT).is_dir()),
        (below, any((below / name).is_file() for names in FILES.values() for name in names)),
        (below / ARCHIVE, (below / ARCHIVE).is_file()),
        (below, below.name == ARCHIVE and below.is_file()),
    ):
        if is_there:
            return RawFiles(path, ROOT, ("",), name=r"(data_batch_[1-5]|test_batch)\.bin")
    pickles = [name for name in _PICKLES if (below / name).exists()]
    instead = f" ({pickles[0]} is; pickles are not read)" if pickles else ""
    raise FileNotFoundError(
        f"Image needs the binary version of CIFAR-10: neither {ROOT} nor {ARCHIVE} is under"
        f" {below}{instead}. Download {URL} (170 MB) into it, or set --config.data.source=tfds."
    )


def _read_files(source: RawFiles, images_per_file: int) -> dict[str, Images]:
    batches: dict[str, Images] = {}
    for name, content in source.read():
        if len(content) != images_per_file * _RECORD:
            raise ValueError(
                f"{name} of {source.path} has {len(content):,} bytes; {images_per_file:,} images of"
                f" {_RECORD:,} bytes have {images_per_file * _RECORD:,}. {_ANEW}"
            )
        records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
        planes = records[:, 1:].reshape(-1, 3, _PIXELS)
        labels = _checked(records[:, 0], f"{name} of {source.path}")
        batches[name] = Images(to_grey(planes.swapaxes(1, 2)), labels)
    missing = [name for names in FILES.values() for name in names if name not in batches]
    if missing:
        raise FileNotFoundError(f"{source.path} lacks {', '.join(missing)}. {_ANEW}")
    return {
        split: Images(
            np.concatenate([batches[name].grey for name in names]),
            np.concatenate([batches[name].labels for name in names]),
        )
        for split, names in FILES.items()
    }


def _read_tfds(source: PreparedByTfds, images_per_file: int) -> dict[str, Images]:
    """In the order of the files, which the ids tell: tfds shuffles, and numbers first."""
    images = {}
    for split, names in FILES.items():
        rows = sorted(
            (example["id"], to_grey(example["image"]).tobytes(), int(example["label"]))
            for example in source.examples(split, ("id", "image", "label"))
        )
        if len(rows) != images_per_file * len(names):
            raise ValueError(
                f"{source.path} has {len(rows):,} images in {split}; CIFAR-10 has"
                f" {images_per_file * len(names):,}. Prepare it anew."
            )
        grey = np.frombuffer(b"".join(pixels for _, pixels, _ in rows), np.uint8)
        labels = _checked(np.array([label for *_, label in rows]), f"{split} in {source.path}")
        images[split] = Images(grey.reshape(-1, _PIXELS), labels)
    return images


def _checked(labels: npt.NDArray[np.integer], origin: str) -> npt.NDArray[np.int32]:
    wrong = np.flatnonzero(labels >= len(CLASS_NAMES))
    if len(wrong):
        raise ValueError(
            f"Image {wrong[0]} of {origin} has the label {labels[wrong[0]]}; CIFAR-10 has 0 to"
            f" {len(CLASS_NAMES) - 1}. {_ANEW}"
        )
    return labels.astype(np.int32)


def _save(
    folder: Path, split: str, grey: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]
) -> None:
    offsets = _PIXELS * np.arange(len(grey) + 1, dtype=np.int64)
    Split(Sequences(grey.reshape(-1), offsets), labels).save(folder, split)
