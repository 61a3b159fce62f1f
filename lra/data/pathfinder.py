"""Pathfinder: do two dots end the same dashed path? Pictures of 32, 64, 128 (Path-X) or 256 pixels a side.

Generated here (seeded; the same bytes for any number of processes), or read from the release:

    pathfinder32/curv_contour_length_14/metadata/3.npy      lines of text, an image each
    pathfinder32/curv_contour_length_14/imgs/3/sample_7.png

Tokens are the pixels, 0 to 255, row by row.

Source: google-research/long-range-arena, lra_benchmarks/image/input_pipeline.py at cd31e5c: 80 % of the
images for training, 10 % for validation, 10 % for the test; files without a byte are left out.
Differs from it: the release is split by the hash of its files' names, where theirs takes the order in
which tensorflow-datasets happened to write them; a black pixel is a pixel, where theirs is padding.
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

from harness import cache, parallel
from harness.raw_files import reading, stamp
from lra.data import pictures
from lra.data.sources import from_files
from lra.data.task import DataConfig, Split, Task

VOCAB_SIZE = 256
CLASS_NAMES = ("not joined", "joined")
SIZES: Mapping[str, int] = {"train": 160_000, "valid": 20_000, "test": 20_000}
RESOLUTIONS = (32, 64, 128, 256)
# Of training: the paper's hundred passes at 32 × 32, and as many of larger pictures.
TOTAL_STEPS: Mapping[int, int] = {32: 62_400, 64: 124_800, 128: 249_600, 256: 998_400}
RELEASE_FOLDERS: Mapping[str, str] = {
    "easy": "curv_baseline",
    "intermediate": "curv_contour_length_9",
    "hard": "curv_contour_length_14",
}

# Part of every fingerprint: raise it when the same arguments give other files.
FORMAT = 1

STATISTICS = ("path_length", "marker_distance", "num_distractors", "restarts")
PICTURES_COUNTED = 1000  # whose regions are counted
PIECE_BYTES = 2**20  # of images that one process makes at a time

_ANEW = "unpack lra_release.gz again"

_logger = logging.getLogger(__name__)


def load(config: DataConfig, *, resolution: int, difficulty: str) -> Task:
    """Opens Pathfinder, preparing it first where it is not there yet.

    Args:
      config: `source` is "files" (the release in `dir`: lra_release, pathfinder32 or the folder of the
        difficulty), "generated", or "auto": files when `dir` is set. With `examples`, only the first
        so many of every split are generated.
      resolution: pixels a side.
      difficulty: "easy", "intermediate" or "hard".

    Raises:
      ValueError: a source that does not exist or does not fit `dir`; a malformed file.
      FileNotFoundError: the release is not in `dir`.
    """
    name = task_name(resolution, difficulty)
    fingerprint: dict[str, Any] = {"task": name, "format": FORMAT}
    build: Callable[[Path], None]
    if from_files(config, task="Pathfinder", folder="lra_release"):
        release = Release.find(cache.user_path(config.dir), resolution, difficulty)
        fingerprint |= {"source": "files", "seed": config.seed}
        fingerprint |= {"metadata": stamp(release.metadata())}
        build = functools.partial(_build_from_files, release=release, seed=config.seed)
    else:
        sizes = {split: min(config.examples or size, size) for split, size in SIZES.items()}
        fingerprint |= {"source": "generated", "seed": config.seed, "sizes": sizes}
        build = functools.partial(
            _build_generated,
            resolution=resolution,
            difficulty=difficulty,
            config=config,
            sizes=sizes,
            final_folder=cache.folder_of(name, fingerprint),
        )
    prepared = cache.prepared(name, fingerprint, build)
    shape = (resolution, resolution)
    return Task(
        name=name,
        splits={split: Split.open(prepared.folder, split) for split in SIZES},
        sha256=prepared.sha256,
        decode=functools.partial(pictures.as_text, shape=shape),
        folder=prepared.folder,
        class_names=CLASS_NAMES,
        image_shape=shape,
        notes=_notes,
    )


def task_name(resolution: int, difficulty: str) -> str:
    """`pathfinder32` is the benchmark's, the hard one; `pathfinder32-easy` says what it is."""
    return f"pathfinder{resolution}{'' if difficulty == 'hard' else f'-{difficulty}'}"


class _Piece(NamedTuple):
    """Images one below the other, as one process makes them."""

    images: npt.NDArray[np.uint8]  # [N, R, R]
    labels: npt.NDArray[np.int32]  # [N]
    statistics: npt.NDArray[np.float32]  # [N, len(STATISTICS)]; [N, 0] where nothing is known


def _save(folder: Path, split: str, pieces: Iterable[_Piece], count: int, resolution: int) -> None:
    """Writes what `Split.open` reads, and the statistics."""
    size = resolution**2
    labels, statistics = [], []
    with (
        cache.array_file(folder / f"{split}_tokens.npy", (count * size,), np.uint8) as append,
        tqdm(desc=f"Pathfinder, {split}", total=count, unit=" images", disable=None) as progress,
    ):
        for piece in pieces:
            append(piece.images)
            labels.append(piece.labels)
            statistics.append(piece.statistics)
            progress.update(len(piece.labels))
    cache.save_array(folder / f"{split}_offsets.npy", np.arange(count + 1, dtype=np.int64) * size)
    cache.save_array(folder / f"{split}_labels.npy", np.concatenate(labels))
    cache.save_array(folder / f"{split}_statistics.npy", np.concatenate(statistics))


def _require_room(folder: Path, num_images: int, resolution: int) -> None:
    """Refuses at once what would fill the disk after an hour."""
    needed, free = num_images * resolution**2, shutil.disk_usage(folder).free
    if needed > free:
        reason = f"{needed / 2**20:,.0f} MiB are needed there, {free / 2**20:,.0f} MiB are free"
        raise OSError(errno.ENOSPC, reason)


def open_statistics(task: Task, split: str) -> dict[str, npt.NDArray[np.float32]]:
    """What the generator knows of the images of a split, by name; nothing for the release's images."""
    statistics = cache.open_array(task.folder / f"{split}_statistics.npy")[
        : len(task.splits[split])
    ]
    return {name: statistics[:, i] for i, name in enumerate(STATISTICS) if statistics.size}


def _notes(task: Task) -> str:
    """Connected regions of the pictures, and what the generator knows of their paths."""
    from scipy import ndimage  # comes with jax

    images = pictures.first_images(task, PICTURES_COUNTED)
    touching = np.ones((3, 3), int)
    counts = [ndimage.label(image > 0, touching)[1] for image in images]
    rows = [
        f"Connected regions of pixels above 0, in {len(images):,} training images:"
        f" {np.mean(counts):.2f} ± {np.std(counts):.2f}.",
    ]
    if found := open_statistics(task, "train"):
        rows += ["", "| training images | mean | 5 % | 50 % | 95 % |", "|---|---|---|---|---|"]
    for name, values in found.items():
        percentiles = " | ".join(f"{value:.1f}" for value in np.percentile(values, (5, 50, 95)))
        rows.append(f"| {name.replace('_', ' ')} | {values.mean():.2f} | {percentiles} |")
    return "\n".join(rows)


# --- Generated ------------------------------------------------------------------------------------


def _build_generated(
    folder: Path,
    *,
    resolution: int,
    difficulty: str,
    config: DataConfig,
    sizes: Mapping[str, int],
    final_folder: Path,
) -> None:
    _require_room(folder, sum(sizes.values()), resolution)
    _logger.info(
        "Preparing Pathfinder: %s images of %d × %d, %s, seed %d, %d processes; once, into %s",
        f"{sum(sizes.values()):,}",
        resolution,
        resolution,
        difficulty,
        config.seed,
        config.num_processes,
        final_folder,
    )
    plans: dict[str, list[tuple[int, int]]] = {}
    start = 0
    for split, size in sizes.items():
        plans[split] = _cut(start, start + size, resolution)
        start += SIZES[split]  # so that a shortened split is the beginning of the whole one
    draw = functools.partial(
        _draw_piece,
        plan=tuple(itertools.chain(*plans.values())),
        resolution=resolution,
        difficulty=difficulty,
        seed=config.seed,
    )
    num_pieces = sum(map(len, plans.values()))
    with closing(parallel.in_order(draw, min(config.num_processes, num_pieces))) as pieces:
        for split, plan in plans.items():
            part = itertools.islice(pieces, len(plan))
            _save(folder, split, part, sizes[split], resolution)


def _cut(start: int, stop: int, resolution: int) -> list[tuple[int, int]]:
    """Cuts numbers of images into pieces for one process."""
    step = max(1, PIECE_BYTES // resolution**2)
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def _draw_piece(
    number: int,
    *,
    plan: Sequence[tuple[int, int]],
    resolution: int,
    difficulty: str,
    seed: int,
) -> _Piece:
    """Draws piece `number` of the plan, or nothing behind its end."""
    from lra.data import pathfinder_generator

    start, stop = plan[number] if number < len(plan) else (0, 0)
    drawn = pathfinder_generator.generate(resolution, difficulty, seed=seed, start=start, stop=stop)
    statistics = [getattr(drawn, name).astype(np.float32) for name in STATISTICS]
    return _Piece(drawn.images, drawn.labels, np.stack(statistics, axis=1))


# --- The release ----------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A line of metadata."""

    name: str  # imgs/3/sample_7.png
    label: int


class Release(NamedTuple):
    """The folder of one resolution and difficulty, with `metadata` and `imgs` in it.

    Prepared data are known again by the size and time of the metadata; the images are not watched.
    """

    folder: Path
    resolution: int

    @classmethod
    def find(cls, below: Path, resolution: int, difficulty: str) -> Self:
        """Finds it in lra_release, in pathfinder32, or takes the folder itself.

        Raises:
          FileNotFoundError: there is no such folder.
        """
        size, level = f"pathfinder{resolution}", RELEASE_FOLDERS[difficulty]
        places = ("lra_release", ""), (size, ""), (level,)
        for place in itertools.product(*places):
            folder = below.joinpath(*place)
            if (folder / "metadata").is_dir():
                return cls(folder, resolution)
        if below.resolve().name == level and (below / "metadata").is_dir():
            return cls(below, resolution)
        raise FileNotFoundError(
            f"Pathfinder needs the release's images: no {size}/{level}/metadata under {below}. Unpack"
            " lra_release.gz and point --config.data.dir at its lra_release folder, or leave it empty"
            " to generate the data."
        )

    def metadata(self) -> dict[str, Path]:
        """The files of metadata, sorted by number.

        Raises:
          FileNotFoundError: there are none.
        """
        paths = sorted(
            (self.folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name)
        )
        if not paths:
            raise FileNotFoundError(
                f"Pathfinder needs the release's metadata: no .npy in {self.folder / 'metadata'}."
                f" They are there when you {_ANEW}."
            )
        return {path.name: path for path in paths}

    def rows(self) -> Iterator[_Row]:
        """Every line of metadata whose image has a byte; empty images are logged.

        Raises:
          ValueError: a malformed line, or an image named twice; the sentence names file and line.
          FileNotFoundError: an image is missing.
          OSError: a file cannot be read.
        """
        seen: set[str] = set()
        for path in self.metadata().values():
            num_columns = 0
            with reading(path):
                content = path.read_bytes()
            if not content:
                raise ValueError(f"{path} is empty; {_ANEW}.")
            for number, line in enumerate(content.splitlines(), start=1):
                columns = line.split()
                num_columns = num_columns or len(columns)
                try:
                    row = _row(columns, num_columns)
                except ValueError as error:
                    raise ValueError(
                        f"{path}, line {number}: {error} Mend it, or {_ANEW}."
                    ) from None
                if row.name in seen:
                    raise ValueError(
                        f"{path}, line {number}: {row.name} was there before; {_ANEW}."
                    )
                seen.add(row.name)
                image = self.folder / row.name
                with reading(image):
                    num_bytes = image.stat().st_size if image.is_file() else None
                if num_bytes is None:
                    raise FileNotFoundError(
                        f"{path}, line {number}: the image {image} is missing; {_ANEW}."
                    )
                if num_bytes:
                    yield row
                else:
                    _logger.warning("%s has no byte and is left out.", image)

    def image(self, name: str) -> npt.NDArray[np.uint8]:
        """The pixels of an image, [R, R].

        Raises:
          ValueError: it is damaged, or no grey picture of this resolution.
        """
        from PIL import Image, UnidentifiedImageError

        path = self.folder / name
        try:
            with Image.open(path) as picture:
                picture.load()
                found = f"{picture.width} × {picture.height} pixels of mode {picture.mode}"
                fits = picture.mode == "L" and picture.size == (self.resolution,) * 2
                pixels = np.asarray(picture)
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise ValueError(f"{path} is damaged ({error}); {_ANEW}.") from None
        if not fits:
            raise ValueError(
                f"{path} has {found}; Pathfinder needs {self.resolution} × {self.resolution} of mode"
                f" L, 8-bit grey: {_ANEW}."
            )
        return pixels


def _row(columns: Sequence[bytes], num_columns: int) -> _Row:
    if len(columns) != num_columns or num_columns < 4:
        raise ValueError(
            f"{num_columns if num_columns >= 4 else 'at least 4'} columns are needed (folder, file,"
            f" number, label, …), {len(columns)} are there."
        )
    try:
        folder, file, label = columns[0].decode(), columns[1].decode(), columns[3].decode()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text.") from None
    if label not in ("0", "1"):
        raise ValueError(f"the label in column 4 must be 0 or 1, not {label!r}.")
    return _Row(f"{folder}/{file}", int(label))


def _build_from_files(folder: Path, *, release: Release, seed: int) -> None:
    rows = sorted(
        release.rows(), key=lambda row: hashlib.sha256(f"{seed} {row.name}".encode()).digest()
    )
    if len(rows) < 10:
        raise ValueError(
            f"{release.folder} has {len(rows)} images with a byte, three splits need"
            f" 10 at least: {_ANEW}."
        )
    _require_room(folder, len(rows), release.resolution)
    _logger.info("Preparing Pathfinder: %s images of %s", f"{len(rows):,}", release.folder)
    num_train, num_valid = len(rows) * 8 // 10, len(rows) // 10
    bounds = [0, num_train, num_train + num_valid, len(rows)]
    for split, (start, stop) in zip(SIZES, itertools.pairwise(bounds), strict=True):
        pieces = (
            _read_piece(release, rows[first:last])
            for first, last in _cut(start, stop, release.resolution)
        )
        _save(folder, split, pieces, stop - start, release.resolution)


def _read_piece(release: Release, rows: Sequence[_Row]) -> _Piece:
    return _Piece(
        np.stack([release.image(row.name) for row in rows]),
        np.array([row.label for row in rows], np.int32),
        np.zeros((len(rows), 0), np.float32),
    )
