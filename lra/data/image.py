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
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataprep import cache
from dataprep.archives import RawFiles
from dataprep.tfds_reader import PreparedByTfds
from lra.data.task import DataConfig, Task, TaskInfo, image_to_text, save_balanced_splits

SHAPE = (32, 32)
CLASS_NAMES: tuple[str, ...] = ("airplane", "automobile", "bird", "cat", "deer")
CLASS_NAMES += ("dog", "frog", "horse", "ship", "truck")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
FILES: Mapping[str, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}

# Part of the fingerprint: increase it when a change of the code changes the prepared data.
FORMAT = 1

_PIXELS = SHAPE[0] * SHAPE[1]
_RECORD = 1 + 3 * _PIXELS  # bytes: a label, then the red, the green and the blue plane

# Contributions of each red, green and blue byte to the gray value, [256] each.
_RED, _GREEN, _BLUE = (
    np.arange(256, dtype=np.float32) * np.float32(1 / 255) * np.float32(weight)
    for weight in (0.2989, 0.5870, 0.1140)
)


def load(config: DataConfig, *, images_per_file: int = 10_000) -> Task:
    """Opens the task Image; prepares the data if they are missing.

    A tenth of the training images of each class is held out for validation. The images keep the order
    of the files. `source` is "files", "auto" (the same) or "tfds", for which `dir` is optional. Each of
    the five training files and the test file has `images_per_file` images.

    Raises:
      FileNotFoundError: The images are missing.
      ValueError: The source is unknown, the archive is corrupt, or a file has an invalid size or label.
    """
    source: RawFiles | PreparedByTfds
    needed = "the binary version of CIFAR-10"
    if config.choose_source("Image", ("files", "tfds"), f"{needed}, {URL}") == "tfds":
        source = PreparedByTfds.find(config.dir, "cifar10", task="Image")
    else:
        source = RawFiles.find(
            cache.user_path(config.dir),
            f"Image needs {needed} (the pickles of the Python version are not read)",
            URL,
            "cifar-10-batches-bin",
            ("",),
            r"(data_batch_[1-5]|test_batch)\.bin",
        )
    fingerprint = {
        "task": "image",
        "format": FORMAT,
        "seed": config.seed,
        "images_per_file": images_per_file,
        "source": source.stamp(),
    }

    def build(folder: Path) -> None:
        examples: dict[str, list[tuple[bytes, int]]] = {split: [] for split in FILES}
        for split, content in _records(source):
            examples[split] += _examples(content)
        sizes = {
            split: images_per_file * len(names) // len(CLASS_NAMES)
            for split, names in FILES.items()
        }
        save_balanced_splits(folder, examples, sizes, CLASS_NAMES, config.seed, str(source.path))

    prepared = cache.prepared("image", fingerprint, build, f"Image: reading {source.path}")
    decode = functools.partial(image_to_text, shape=SHAPE)
    return Task.open("image", prepared, decode, class_names=CLASS_NAMES)


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


def _records(source: RawFiles | PreparedByTfds) -> Iterator[tuple[str, bytes]]:
    """Yields splits and records in the binary format, in the order of the original files."""
    if isinstance(source, RawFiles):
        files = dict(source.read())
        for split, names in FILES.items():
            for name in names:
                content = files.get(name, b"")
                if not content or len(content) % _RECORD:
                    raise ValueError(
                        f"{source.path} lacks {name}, or it was truncated: it has {len(content):,} bytes,"
                        f" and an image has {_RECORD:,}. Unpack the download again."
                    )
                yield split, content
        return
    for split in FILES:  # tfds shuffles the images
        examples = source.examples(split, ("id", "image", "label"))
        for _, record in sorted((example["id"], _record(example)) for example in examples):
            yield split, record


def _record(example: Mapping[str, npt.NDArray[np.uint8]]) -> bytes:
    """Returns an example of tensorflow-datasets in the binary format."""
    return bytes([int(example["label"])]) + example["image"].transpose(2, 0, 1).tobytes()


def _examples(content: bytes) -> list[tuple[bytes, int]]:
    """Returns the gray pixels and the label of each record."""
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    gray = to_gray(records[:, 1:].reshape(-1, 3, _PIXELS).swapaxes(1, 2))
    return [
        (pixels.tobytes(), label)
        for pixels, label in zip(gray, records[:, 0].tolist(), strict=True)
    ]


INFO = TaskInfo(
    vocab_size=256,
    num_classes=len(CLASS_NAMES),
    load=load,
    sizes={"train": 45_000, "valid": 5_000, "test": 10_000},
    total_steps=35_000,
    num_pixels=1024,
    official_sha256="293cd03ac66c89517f3c95924115556c5c08858ace45828803ee1ea7b4cab9f6",
)
