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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dataprep import cache, parallel
from dataprep.archives import reading, stamp
from lra.data.task import DataConfig, Split, Task, image_to_text, release_folders

VOCAB_SIZE = 256
CLASS_NAMES = ("not joined", "joined")
SIZES: Mapping[str, int] = {"train": 160_000, "valid": 20_000, "test": 20_000}
RESOLUTIONS = (32, 64, 128, 256)
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
MAX_IMAGES = 1000  # images per split whose connected regions are counted
CHUNK_BYTES = 2**20  # size of the images that one process draws at a time

_ADVICE = "unpack lra_release.gz again"

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
    if config.choose_source("Pathfinder", "generated", "the folder lra_release") == "files":
        release = Release.find(cache.user_path(config.dir), resolution, difficulty)
        fingerprint |= {"source": "files", "seed": config.seed}
        fingerprint |= {"metadata": stamp(release.metadata())}
        build = functools.partial(_build_from_files, release=release, seed=config.seed)
        description = f"Pathfinder: reading {release.folder}"
    else:
        sizes = {split: min(config.examples or size, size) for split, size in SIZES.items()}
        fingerprint |= {"source": "generated", "seed": config.seed, "sizes": sizes}
        build = functools.partial(
            _build_generated,
            resolution=resolution,
            difficulty=difficulty,
            config=config,
            sizes=sizes,
        )
        description = (
            f"Pathfinder: {sum(sizes.values()):,} images of {resolution} × {resolution}, {difficulty},"
            f" seed {config.seed}, {config.num_processes} processes"
        )
    shape = (resolution, resolution)
    return Task.open(
        name,
        cache.prepared(name, fingerprint, build, description),
        functools.partial(image_to_text, shape=shape),
        class_names=CLASS_NAMES,
        image_shape=shape,
        notes=_describe_images,
        open_curriculum=functools.partial(_curriculum, config, resolution, difficulty),
    )


def _curriculum(
    config: DataConfig, resolution: int, difficulty: str
) -> tuple[Split, cache.Prepared]:
    """Opens the images with shorter targets; generates them if they are missing."""
    name = f"{task_name(resolution, difficulty)}-curriculum"
    count, seed = config.num_easier, config.seed
    plan = _plan_chunks(0, count, resolution)
    draw = functools.partial(
        _draw_curriculum_chunk,
        plan=plan,
        resolution=resolution,
        difficulty=difficulty,
        seed=seed,
    )

    def build(folder: Path) -> None:
        _require_disk_space(folder, count, resolution)
        with closing(parallel.in_order(draw, min(config.num_processes, len(plan)))) as chunks:
            _save(folder, "train", itertools.islice(chunks, len(plan)), count, resolution)

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
    statistics: npt.NDArray[np.float32]  # [N, len(STATISTICS)]; [N, 0] for the release


def _save(folder: Path, split: str, chunks: Iterable[_Chunk], count: int, resolution: int) -> None:
    """Writes a split in the format of `Split.open`, and the generator's statistics."""
    size = resolution**2
    labels, statistics = [], []
    with (
        cache.array_file(folder / f"{split}_tokens.npy", (count * size,), np.uint8) as append,
        tqdm(desc=f"Pathfinder, {split}", total=count, unit=" images", disable=None) as progress,
    ):
        for chunk in chunks:
            append(chunk.images)
            labels.append(chunk.labels)
            statistics.append(chunk.statistics)
            progress.update(len(chunk.labels))
    cache.save_array(folder / f"{split}_offsets.npy", np.arange(count + 1, dtype=np.int64) * size)
    cache.save_array(folder / f"{split}_labels.npy", np.concatenate(labels))
    cache.save_array(folder / f"{split}_statistics.npy", np.concatenate(statistics))


def _require_disk_space(folder: Path, num_images: int, resolution: int) -> None:
    """Raises OSError if the disk has too little free space for the images."""
    needed, free = num_images * resolution**2, shutil.disk_usage(folder).free
    if needed > free:
        reason = f"{needed / 2**20:,.0f} MiB are needed, {free / 2**20:,.0f} MiB are free"
        raise OSError(errno.ENOSPC, reason)


def open_statistics(task: Task, split: str) -> dict[str, npt.NDArray[np.float32]]:
    """Returns the generator's statistics of the images in a split, by name; empty for the release."""
    statistics = cache.open_array(task.folder / f"{split}_statistics.npy")
    columns = statistics[: len(task.splits[split])].T  # empty for the release
    return dict(zip(STATISTICS, columns, strict=False))


def _describe_images(task: Task) -> str:
    """Returns a Markdown report: connected regions of the images, and the generator's statistics."""
    from scipy import ndimage  # installed with jax

    from reporting.tables import PERCENTILES, markdown  # loads pandas

    images = task.first_images(MAX_IMAGES)
    neighbors = np.ones((3, 3), int)
    counts = [ndimage.label(image > 0, neighbors)[1] for image in images]
    rows = [
        f"Connected regions of pixels above 0, in {len(images):,} training images:"
        f" {np.mean(counts):.2f} ± {np.std(counts):.2f}.",
    ]
    table = []
    for name, values in open_statistics(task, "train").items():
        percentiles = [f"{value:.1f}" for value in np.percentile(values, PERCENTILES)]
        names = [f"{percent} %" for percent in PERCENTILES]
        table.append(
            {
                "training images": name.replace("_", " "),
                "mean": f"{values.mean():.2f}",
                **dict(zip(names, percentiles, strict=True)),
            }
        )
    if table:
        rows += ["", markdown(table).rstrip()]
    return "\n".join(rows)


# --- Generated ------------------------------------------------------------------------------------


def _build_generated(
    folder: Path, *, resolution: int, difficulty: str, config: DataConfig, sizes: Mapping[str, int]
) -> None:
    _require_disk_space(folder, sum(sizes.values()), resolution)
    plans: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for split, size in sizes.items():
        plans[split] = _plan_chunks(start, start + size, resolution)
        start += SIZES[split]  # a split with fewer examples is the beginning of the full split
    draw = functools.partial(
        _draw_chunk,
        plan=tuple(itertools.chain(*plans.values())),
        resolution=resolution,
        difficulty=difficulty,
        seed=config.seed,
    )
    num_chunks = sum(map(len, plans.values()))
    with closing(parallel.in_order(draw, min(config.num_processes, num_chunks))) as chunks:
        for split, plan in plans.items():
            part = itertools.islice(chunks, len(plan))
            _save(folder, split, part, sizes[split], resolution)


def _plan_chunks(start: int, stop: int, resolution: int) -> list[tuple[int, int]]:
    """Divides the images `start` to `stop - 1` into chunks; returns (first, last + 1) of each."""
    step = max(1, CHUNK_BYTES // resolution**2)
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def _draw_chunk(
    number: int, *, plan: Sequence[tuple[int, int]], resolution: int, difficulty: str, seed: int
) -> _Chunk:
    """Draws chunk `number` of the plan; returns an empty chunk after the end of the plan."""
    from lra.data import pathfinder_generator

    start, stop = plan[number] if number < len(plan) else (0, 0)
    drawn = pathfinder_generator.generate(resolution, difficulty, seed=seed, start=start, stop=stop)
    statistics = [getattr(drawn, name).astype(np.float32) for name in STATISTICS]
    return _Chunk(drawn.images, drawn.labels, np.stack(statistics, axis=1))


def _draw_curriculum_chunk(
    number: int, *, plan: Sequence[tuple[int, int]], resolution: int, difficulty: str, seed: int
) -> _Chunk:
    """Draws chunk `number` of the curriculum; returns an empty chunk after the end of the plan.

    The maximum length of targets grows from image to image, from 2 paddles to one less than in the task.
    Half of the images have targets of the maximum length. The others have a random length from 2 paddles to
    the maximum.
    """
    from lra.data import pathfinder_generator as generator

    start, stop = plan[number] if number < len(plan) else (0, 0)
    longest = np.linspace(2, generator.DIFFICULTIES[difficulty], plan[-1][1], endpoint=False)
    longest = longest[start:stop].astype(int)
    is_shorter, share = np.random.default_rng([seed, number]).random((2, stop - start))
    paddles = np.where(is_shorter < 0.5, 2 + (share * (longest - 1)).astype(int), longest)
    images = np.empty((stop - start, resolution, resolution), np.uint8)
    labels = np.empty(stop - start, np.int32)
    for length in np.unique(paddles):
        rows = paddles == length
        drawn = generator.draw(
            generator.parameters(resolution, difficulty, int(length)),
            seed=seed,
            start=start,
            stop=start + int(rows.sum()),
        )
        images[rows], labels[rows] = drawn.images, drawn.labels
    return _Chunk(images, labels, np.zeros((stop - start, 0), np.float32))


# --- The release ----------------------------------------------------------------------------------


class Release(NamedTuple):
    """Folder of the release for one resolution and difficulty, with the folders `metadata` and `imgs`.

    Only the sizes and modification times of the metadata are in the fingerprint of the prepared data, so
    changes of the images are not detected.
    """

    folder: Path
    resolution: int

    @classmethod
    def find(cls, below: Path, resolution: int, difficulty: str) -> Self:
        """Finds the folder in `below`, which may also be pathfinder32 or the folder itself.

        Raises:
          FileNotFoundError: The folder does not exist.
        """
        size, level = f"pathfinder{resolution}", RELEASE_FOLDERS[difficulty]
        for folder in release_folders(below, size, f"pathfinder/{size}"):
            if (folder / level / "metadata").is_dir():
                return cls(folder / level, resolution)
        if below.resolve().name == level and (below / "metadata").is_dir():
            return cls(below, resolution)
        raise FileNotFoundError(
            f"Pathfinder needs the release's images: no {size}/{level}/metadata under {below}. Unpack"
            " lra_release.gz and set --config.data.dir to its folder lra_release, or leave it empty to"
            " generate the data."
        )

    def metadata(self) -> dict[str, Path]:
        """Returns the metadata files by name, sorted by number, without hidden ones such as macOS's ._1.npy.

        Raises:
          FileNotFoundError: There are no metadata files.
        """
        paths = sorted(
            (self.folder / "metadata").glob("[!.]*.npy"),
            key=lambda path: (len(path.name), path.name),
        )
        if not paths:
            raise FileNotFoundError(
                f"Pathfinder needs the release's metadata: no .npy in {self.folder / 'metadata'};"
                f" {_ADVICE}."
            )
        return {path.name: path for path in paths}

    def rows(self) -> Iterator[tuple[str, int]]:
        """Yields the name and the label of each image; empty files are skipped and logged.

        Raises:
          ValueError: A line is malformed, or an image occurs twice; the message has file and line.
          FileNotFoundError: An image is missing.
          OSError: A file cannot be read.
        """
        seen: set[str] = set()
        for path in self.metadata().values():
            num_columns = 0
            with reading(path):
                content = path.read_bytes()
            if not content:
                raise ValueError(f"{path} is empty; {_ADVICE}.")
            if content.startswith(b"\x93NUMPY"):
                raise ValueError(
                    f"{path} is an array in NumPy's binary format, as the original generator writes it; the"
                    " metadata of the LRA release are text, with one image per line."
                )
            for number, line in enumerate(content.splitlines(), start=1):
                columns = line.split()
                num_columns = num_columns or len(columns)
                try:
                    name, label = _row(columns, num_columns)
                except ValueError as error:
                    raise ValueError(
                        f"{path}, line {number}: {error} Fix it, or {_ADVICE}."
                    ) from None
                if name in seen:
                    raise ValueError(f"{path}, line {number}: {name} occurs twice; {_ADVICE}.")
                seen.add(name)
                image = self.folder / name
                with reading(image):
                    num_bytes = image.stat().st_size if image.is_file() else None
                if num_bytes is None:
                    raise FileNotFoundError(
                        f"{path}, line {number}: the image {image} is missing; {_ADVICE}."
                    )
                if num_bytes:
                    yield name, label
                else:
                    _logger.warning("%s is empty and is left out.", image)

    def image(self, name: str) -> npt.NDArray[np.uint8]:
        """Returns the pixels of an image, [R, R].

        Raises:
          ValueError: The image is corrupt, or not an 8-bit grayscale image of this resolution.
        """
        from PIL import Image, UnidentifiedImageError

        path = self.folder / name
        try:
            with Image.open(path) as picture:
                picture.load()
                found = f"{picture.width} × {picture.height} pixels of mode {picture.mode}"
                fits = picture.mode == "L" and picture.size == (self.resolution,) * 2
                pixels = np.asarray(picture)
        except (
            UnidentifiedImageError,
            Image.DecompressionBombError,
            OSError,
            SyntaxError,
            ValueError,
        ) as error:
            raise ValueError(f"{path} is corrupt ({error}); {_ADVICE}.") from None
        if not fits:
            raise ValueError(
                f"{path} has {found}; Pathfinder needs {self.resolution} × {self.resolution} pixels of"
                f" mode L, 8-bit gray: {_ADVICE}."
            )
        return pixels


def _row(columns: Sequence[bytes], num_columns: int) -> tuple[str, int]:
    """Parses a line of the metadata; returns the image's name, such as imgs/3/sample_7.png, and label."""
    if len(columns) != num_columns or num_columns < 4:
        raise ValueError(
            f"expected {num_columns if num_columns >= 4 else 'at least 4'} columns (folder, file, number,"
            f" label, …), found {len(columns)}."
        )
    try:
        folder, file, label = columns[0].decode(), columns[1].decode(), columns[3].decode()
    except UnicodeDecodeError:
        raise ValueError("the line is not valid UTF-8.") from None
    if label not in ("0", "1"):
        raise ValueError(f"the label in column 4 must be 0 or 1, not {label!r}.")
    return f"{folder}/{file}", int(label)


def _build_from_files(folder: Path, *, release: Release, seed: int) -> None:
    rows = sorted(
        release.rows(), key=lambda row: hashlib.sha256(f"{seed} {row[0]}".encode()).digest()
    )
    if len(rows) < 10:
        raise ValueError(
            f"{release.folder} has {len(rows)} non-empty images; three splits need at least 10:"
            f" {_ADVICE}."
        )
    _require_disk_space(folder, len(rows), release.resolution)
    num_train, num_valid = len(rows) * 8 // 10, len(rows) // 10
    bounds = [0, num_train, num_train + num_valid, len(rows)]
    for split, (start, stop) in zip(SIZES, itertools.pairwise(bounds), strict=True):
        chunks = (
            _read_chunk(release, rows[first:last])
            for first, last in _plan_chunks(start, stop, release.resolution)
        )
        _save(folder, split, chunks, stop - start, release.resolution)


def _read_chunk(release: Release, rows: Sequence[tuple[str, int]]) -> _Chunk:
    return _Chunk(
        np.stack([release.image(name) for name, _ in rows]),
        np.array([label for _, label in rows], np.int32),
        np.zeros((len(rows), 0), np.float32),
    )
