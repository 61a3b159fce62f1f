"""Pathfinder: does a dashed path connect the two dots? Images of side 32, 64, 128 (Path-X) or 256 pixels.

The images are generated from a seed, identically for any number of processes, or read from the release:

    pathfinder32/curv_contour_length_14/metadata/3.npy      text with one line per image
    pathfinder32/curv_contour_length_14/imgs/3/sample_7.png

Tokens are the pixels, 0 to 255, row by row.

Source: google-research/long-range-arena, lra_benchmarks/image/input_pipeline.py at cd31e5c: 80 % of the
images for training, 10 % for validation, 10 % for testing; empty files are skipped.
Differs: the release is split by a hash of the file names; the original splits in the order of
tensorflow-datasets. Black pixels are real tokens; the original masks them.
"""

import errno
import functools
import hashlib
import itertools
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import cache, parallel
from dataprep.archives import reading, stamp
from lra.data import pathfinder_generator as generator
from lra.data import release
from lra.data.task import DataConfig, Split, Task, TaskInfo, image_to_text

CLASS_NAMES = ("not joined", "joined")
SIZES: Mapping[str, int] = {"train": 160_000, "valid": 20_000, "test": 20_000}
# Training steps by resolution: 100 epochs as in the paper, also for larger images (in smaller batches).
TOTAL_STEPS: Mapping[int, int] = {32: 62_400, 64: 124_800, 128: 249_600, 256: 998_400}
RELEASE_FOLDERS: Mapping[str, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}

# Part of the fingerprint: increase it when a change of the code changes the prepared data. The images of a
# curriculum also depend on `CHUNK_BYTES`.
FORMAT = 1

STATISTICS = ("path_length", "marker_distance", "num_distractors", "restarts")
CHUNK_BYTES = 2**20  # size of the images that one process draws at a time

_logger = logging.getLogger(__name__)


def load(config: DataConfig, *, resolution: int, difficulty: str) -> Task:
    """Opens the task Pathfinder; prepares the data if they are missing.

    `source` is "files" (the release; `dir` is lra_release, pathfinder32 or the folder of the difficulty),
    "generated", or "auto" (files if `dir` is set). If `examples` is set, only that many examples per split
    and of the curriculum are generated.

    Raises:
      ValueError: The source is unknown or contradicts `dir`, or a file is malformed.
      FileNotFoundError: The release is not in `dir`.
    """
    name = task_name(resolution, difficulty)
    fingerprint: dict[str, Any] = {"task": name, "format": FORMAT}
    build: Callable[[Path], None]
    known = ("files", "generated")
    if config.choose_source("Pathfinder", known, "the folder lra_release") == "files":
        images = _find_images(config.dir, resolution, difficulty)
        fingerprint |= {"source": "files", "seed": config.seed}
        fingerprint |= {"metadata": stamp(_metadata(images))}
        build = functools.partial(
            _build_from_files, images=images, resolution=resolution, seed=config.seed
        )
        description = f"Pathfinder: reading {images}"
    else:
        sizes = {split: min(config.examples or size, size) for split, size in SIZES.items()}
        fingerprint |= {"source": "generated", "seed": config.seed, "sizes": sizes}
        starts = dict(zip(SIZES, itertools.accumulate(SIZES.values(), initial=0), strict=False))
        # A split with fewer examples is the beginning of the full split.
        rows = {split: range(starts[split], starts[split] + size) for split, size in sizes.items()}
        draw = functools.partial(
            _draw_chunk, resolution=resolution, difficulty=difficulty, seed=config.seed
        )
        build = functools.partial(
            _write, draw=draw, rows=rows, resolution=resolution, num_processes=config.num_processes
        )
        description = (
            f"Pathfinder: {sum(sizes.values()):,} images of {resolution} × {resolution}, {difficulty},"
            f" seed {config.seed}, {config.num_processes} processes"
        )
    return Task.open(
        name,
        cache.prepared(name, fingerprint, build, description),
        functools.partial(image_to_text, shape=(resolution, resolution)),
        class_names=CLASS_NAMES,
        open_curriculum=functools.partial(_curriculum, config, resolution, difficulty),
    )


def _curriculum(
    config: DataConfig, resolution: int, difficulty: str
) -> tuple[Split, cache.Prepared]:
    """Opens the images with shorter targets; generates them if they are missing."""
    name = f"{task_name(resolution, difficulty)}-curriculum"
    count, seed = config.num_easier, config.seed
    draw = functools.partial(
        _draw_curriculum_chunk,
        count=count,
        step=_chunk_size(resolution),
        resolution=resolution,
        difficulty=difficulty,
        seed=seed,
    )
    build = functools.partial(
        _write,
        draw=draw,
        rows={"train": range(count)},
        resolution=resolution,
        num_processes=config.num_processes,
    )
    fingerprint = {"task": name, "format": FORMAT, "seed": seed, "examples": count}
    description = f"Pathfinder: {count:,} images with shorter paths, seed {seed}"
    prepared = cache.prepared(name, fingerprint, build, description)
    return Split.open(prepared.folder, "train"), prepared


def task_name(resolution: int, difficulty: str) -> str:
    """Returns the name of a task; the hard difficulty, which the benchmark uses, has no suffix."""
    return f"pathfinder{resolution}{'' if difficulty == 'hard' else f'-{difficulty}'}"


class _Chunk(NamedTuple):
    """Images that one process draws or reads at a time, with their labels and statistics."""

    images: npt.NDArray[np.uint8]  # [N, R, R]
    labels: npt.NDArray[np.int32]  # [N]
    statistics: npt.NDArray[np.float32]  # [N, len(STATISTICS)]; [N, 0] without the generator


def _write(
    folder: Path,
    *,
    draw: Callable[[range], _Chunk],
    rows: Mapping[str, range],
    resolution: int,
    num_processes: int = 1,
) -> None:
    """Draws the `rows` of each split in chunks, and writes them in the format of `Split.open`.

    Raises:
      OSError: The disk has too little free space for the images.
    """
    size = resolution**2
    needed, free = sum(map(len, rows.values())) * size, shutil.disk_usage(folder).free
    if needed > free:
        reason = f"{needed / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free"
        raise OSError(errno.ENOSPC, reason)
    step = _chunk_size(resolution)
    plan = [part[i : i + step] for part in rows.values() for i in range(0, len(part), step)]
    with closing(parallel.in_order(draw, plan, min(num_processes, len(plan)))) as drawn:
        for split, part in rows.items():
            labels, statistics = [], []
            with (
                cache.array_file(
                    folder / f"{split}_tokens.npy", (len(part) * size,), np.uint8
                ) as append,
                tqdm(
                    desc=f"Pathfinder, {split}", total=len(part), unit=" images", disable=None
                ) as progress,
            ):
                for chunk in itertools.islice(drawn, -(-len(part) // step)):
                    append(chunk.images)
                    labels.append(chunk.labels)
                    statistics.append(chunk.statistics)
                    progress.update(len(chunk.labels))
            offsets = np.arange(len(part) + 1, dtype=np.int64) * size
            cache.save_array(folder / f"{split}_offsets.npy", offsets)
            cache.save_array(folder / f"{split}_labels.npy", np.concatenate(labels))
            cache.save_array(folder / f"{split}_statistics.npy", np.concatenate(statistics))


def _chunk_size(resolution: int) -> int:
    """Returns the number of images that a process draws at a time."""
    return max(1, CHUNK_BYTES // resolution**2)


# --- Generated ------------------------------------------------------------------------------------


def _draw_chunk(rows: range, *, resolution: int, difficulty: str, seed: int) -> _Chunk:
    drawn = generator.generate(resolution, difficulty, seed=seed, start=rows.start, stop=rows.stop)
    statistics = [getattr(drawn, name).astype(np.float32) for name in STATISTICS]
    return _Chunk(drawn.images, drawn.labels, np.stack(statistics, axis=1))


def _draw_curriculum_chunk(
    rows: range, *, count: int, step: int, resolution: int, difficulty: str, seed: int
) -> _Chunk:
    """Draws the images `rows`, at most `step`, of a curriculum of `count` images.

    The maximum length of targets grows from image to image, from 2 paddles to one less than in the task.
    Half of the images have targets of the maximum length. The others have a random length from 2 paddles to
    the maximum.
    """
    longest = np.linspace(2, generator.DIFFICULTIES[difficulty], count, endpoint=False)
    longest = longest[rows.start : rows.stop].astype(int)
    rng = np.random.default_rng([seed, rows.start // step])
    is_shorter, share = rng.random((2, len(rows)))
    paddles = np.where(is_shorter < 0.5, 2 + (share * (longest - 1)).astype(int), longest)
    images = np.empty((len(rows), resolution, resolution), np.uint8)
    labels = np.empty(len(rows), np.int32)
    for length in np.unique(paddles):
        own = paddles == length
        drawn = generator.draw(
            generator.parameters(resolution, difficulty, int(length)),
            seed=seed,
            start=rows.start,
            stop=rows.start + int(own.sum()),
        )
        images[own], labels[own] = drawn.images, drawn.labels
    return _Chunk(images, labels, np.zeros((len(rows), 0), np.float32))


# --- The release ----------------------------------------------------------------------------------


def _find_images(data_dir: str, resolution: int, difficulty: str) -> Path:
    """Returns the folder of the release for a resolution and a difficulty, with `metadata` and `imgs`.

    Only the sizes and modification times of the metadata are in the fingerprint of the prepared data, so
    changes of the images are not detected.
    """
    size, level = f"pathfinder{resolution}", RELEASE_FOLDERS[difficulty]
    below = cache.user_path(data_dir).resolve()
    if below.name == level:  # the folder itself
        below = below.parent
    folders = (size, f"pathfinder/{size}")
    return release.find("Pathfinder", str(below), folders, [f"{level}/metadata"]) / level


def _metadata(images: Path) -> dict[str, Path]:
    """Returns the metadata files by name, sorted by number, without hidden ones such as macOS's ._1.npy.

    They are text with one line per image, although their names end in .npy.

    Raises:
      FileNotFoundError: The metadata files are missing.
    """
    paths = sorted(
        (images / "metadata").glob("[!.]*.npy"), key=lambda path: (len(path.name), path.name)
    )
    if not paths:
        raise FileNotFoundError(
            f"Pathfinder needs the release's metadata: no .npy in {images / 'metadata'};"
            f" {release.ADVICE}."
        )
    return {path.name: path for path in paths}


def _rows(images: Path) -> Iterator[tuple[str, int]]:
    """Yields the name and the label of each image; empty files are skipped and logged.

    Raises:
      ValueError: A line is malformed, or an image is missing or occurs twice.
      OSError: A file cannot be read.
    """
    seen: set[str] = set()

    def parse(line: bytes) -> tuple[str, int, int]:
        name, label = _row(line)
        image = images / name
        with reading(image):
            if name in seen or not image.is_file():
                flaw = "occurs twice" if name in seen else "is missing"
                raise ValueError(f"{image} {flaw}.")
            seen.add(name)
            return name, label, image.stat().st_size

    for path in _metadata(images).values():
        for name, label, num_bytes in release.read_lines(path, parse):
            if num_bytes:
                yield name, label
            else:
                _logger.warning("%s is empty and is left out.", images / name)


def _row(line: bytes) -> tuple[str, int]:
    """Parses a line of the metadata; returns the image's name, such as imgs/3/sample_7.png, and label."""
    if line.startswith(b"\x93NUMPY"):
        raise ValueError("this is NumPy's binary format, but the metadata are lines of text.")
    columns = line.decode().split()
    if len(columns) < 4:
        raise ValueError(
            f"expected at least 4 columns (folder, file, number, label, …), found {len(columns)}."
        )
    folder, file, _, label, *_ = columns
    if label not in ("0", "1"):
        raise ValueError(f"the label in column 4 must be 0 or 1, not {label!r}.")
    if Path(folder, file).is_absolute() or ".." in Path(folder, file).parts:
        raise ValueError(f"the image {folder}/{file} must be in the folder of the metadata.")
    return f"{folder}/{file}", int(label)


def _read_image(path: Path, resolution: int) -> npt.NDArray[np.uint8]:
    """Returns the pixels of an image, [R, R].

    Raises:
      ValueError: The image is corrupt, or not an 8-bit grayscale image of this resolution.
    """
    from PIL import Image

    try:
        with Image.open(path) as picture:
            found = f"{picture.width} × {picture.height} pixels of mode {picture.mode}"
            pixels = np.asarray(picture)
    except (Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is corrupt ({error}); {release.ADVICE}.") from None
    if picture.mode != "L" or pixels.shape != (resolution, resolution):
        raise ValueError(
            f"{path} has {found}; Pathfinder needs {resolution} × {resolution} pixels of mode L, 8-bit"
            f" gray: {release.ADVICE}."
        )
    return pixels


def _build_from_files(folder: Path, *, images: Path, resolution: int, seed: int) -> None:
    rows = sorted(
        _rows(images), key=lambda row: hashlib.sha256(f"{seed} {row[0]}".encode()).digest()
    )
    if len(rows) < 10:
        raise ValueError(
            f"{images} has {len(rows)} non-empty images; three splits need at least 10:"
            f" {release.ADVICE}."
        )

    def read(chunk: range) -> _Chunk:
        part = rows[chunk.start : chunk.stop]
        return _Chunk(
            np.stack([_read_image(images / name, resolution) for name, _ in part]),
            np.array([label for _, label in part], np.int32),
            np.zeros((len(part), 0), np.float32),
        )

    num_train, num_valid = len(rows) * 8 // 10, len(rows) // 10
    splits = {
        "train": range(num_train),
        "valid": range(num_train, num_train + num_valid),
        "test": range(num_train + num_valid, len(rows)),
    }
    _write(folder, draw=read, rows=splits, resolution=resolution)


INFOS: Mapping[str, TaskInfo] = {
    task_name(resolution, difficulty): TaskInfo(
        vocab_size=256,
        num_classes=len(CLASS_NAMES),
        load=functools.partial(load, resolution=resolution, difficulty=difficulty),
        sizes=SIZES,
        total_steps=total_steps,
        num_pixels=resolution**2,
        has_curriculum=True,
    )
    for resolution, total_steps in TOTAL_STEPS.items()
    for difficulty in RELEASE_FOLDERS
}
