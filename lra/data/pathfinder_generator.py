"""Generator of Pathfinder images: two dashed paths, distractors, and two discs at ends of the paths.

    images = generate(32, "hard", seed=0, start=0, stop=1000).images    # [1000, 32, 32], bytes

An image depends only on its resolution, difficulty, seed and number, so any range of images can be
drawn separately.

A path is a chain of paddles (dashes). Its first paddle leads from the tail to the head; names such as
`seed_distance` call it the seed, which has nothing to do with the random `seed`. The next paddle ends on a
pixel near a circle around the pivot, a point just past the previous head. Small turns and free surroundings
are more likely. A mask holds the pixels that paddles and their margins occupy. Two targets of
`contour_length` paddles grow alternately; if no paddle fits, both start again. Distractors, a third as long,
grow in the remaining space. The first marker is on the tail of a target, the second on the head of the same
target (label 1) or of the other target (label 0).

Source: drewlinsley/pathfinder at ab9c130 (snakes2.py, snakes.py; © 2018 Junkyung Kim, MIT), with the
parameters of google-research/long-range-arena, lra_benchmarks/data/pathfinder.py at 211e07d. The
distribution of the original is reproduced with all quirks: a paddle is added to the mask one round
late, the last paddle of the first target is never added, coordinates are rounded up or truncated,
pixels are rescaled to 0 to 255 before every Lanczos filter and again at the end, the space for a seed
is checked one pixel off the tail, and some directions of seeds never occur.
Differs: each image has a separate random stream. Paddles and discs are precomputed stamps,
equal in every pixel to the original's drawing. Weights of turns are rounded to 2**-24. Single paddles,
segmentation and lists of contrasts, which the Long Range Arena does not use, are not implemented.
"""

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

if TYPE_CHECKING:
    from lra.data import pathfinder_kernels as kernels

RESOLUTIONS = (32, 64, 128, 256)
DIFFICULTIES: Mapping[str, int] = {"easy": 6, "intermediate": 9, "hard": 14}  # paddles per target

ANTIALIAS = 2  # supersampling: pixels of the fine canvas per pixel
MAX_OVERLAP = 1.8  # a paddle fits where the sum of the occupancies is below this
WEIGHT_ONE = 2**24  # also the unit of `pathfinder_kernels.DEAD_END`

_SUPPORT = 6  # reach of the Lanczos filter beyond the edge of a disc in pixels, borders included

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parameters:
    """Arguments of the original generator for a resolution and a difficulty; lengths are in pixels.

    A paddle that turns by θ relative to the previous paddle has the weight
    cos(min(continuity · |θ|, π / 2))².
    """

    padding: int  # width of the border without targets
    margins: tuple[int, ...]  # around paddles; each image uses one, chosen at random
    paddle_length: int
    paddle_thickness: float  # a multiple of 0.5
    marker_radius: float
    seed_distance: int  # between the tails of the targets
    continuity: float
    target_contrast: float  # brightness of targets; markers have brightness 1
    distractor_contrast: float
    resolution: int
    contour_length: int  # paddles per target
    distractor_length: int  # paddles per distractor
    num_distractors: int  # attempted; some may not fit


class Drawn(NamedTuple):
    """N = stop − start images with the positions of their paths; a paddle is stored as (pose, y, x).

    For the first paddle of a path, the pose is the direction in degrees plus 180, and (y, x) is the tail.
    For other paddles, the pose is 360 plus the number of the candidate pixel, and (y, x) is the head.
    """

    images: _Bytes  # [N, R, R]
    labels: npt.NDArray[np.int32]  # [N]; 1 if both markers are on the same target
    targets: npt.NDArray[np.int16]  # [N, 2, contour_length, 3]
    distractors: npt.NDArray[np.int16]  # [N, max distractors, distractor_length, 3], zero-padded
    marked: npt.NDArray[np.int8]  # [N, 2] indices of the targets under the first and second marker
    num_distractors: npt.NDArray[np.int32]  # [N]
    restarts: npt.NDArray[np.int32]  # [N] failed attempts to draw the targets

    @property
    def path_length(self) -> npt.NDArray[np.float32]:
        """Length in pixels of the target under the first marker, [N]."""
        rows = np.arange(len(self.labels))
        path = self.targets[rows, self.marked[:, 0], :, 1:].astype(np.float64)
        return np.sqrt((np.diff(path, axis=1) ** 2).sum(-1)).sum(1).astype(np.float32)

    @property
    def marker_distance(self) -> npt.NDArray[np.float32]:
        """Distance in pixels between the centers of the markers, [N]."""
        rows = np.arange(len(self.labels))
        start = self.targets[rows, self.marked[:, 0], 0, 1:].astype(np.float64)
        end = self.targets[rows, self.marked[:, 1], -1, 1:]
        return np.sqrt(((start - end) ** 2).sum(-1)).astype(np.float32)


def parameters(resolution: int, difficulty: str, paddles: int = 0) -> Parameters:
    """Returns the generator's parameters in the Long Range Arena.

    `paddles` replaces the number of paddles of the difficulty, for shorter targets in a curriculum.

    Raises:
      ValueError: The resolution or the difficulty is unknown.

    Source: the class docstrings of lra_benchmarks/data/pathfinder.py, which list the hard difficulty. The
    names of the folders give the lengths of the other difficulties. Their numbers of distractors are
    assumed to follow from the same formula.
    """
    chosen = {"resolution": (resolution, RESOLUTIONS), "difficulty": (difficulty, DIFFICULTIES)}
    for name, (value, known) in chosen.items():
        if value not in known:
            raise ValueError(
                f"Pathfinder has no {name} {value!r}: choose one of {', '.join(map(str, known))}."
            )
    contour_length = paddles or DIFFICULTIES[difficulty]
    distractor_length = max(2, contour_length // 3)
    num_distractors = {32: 20, 64: 22, 128: 35, 256: 30}[resolution] // distractor_length
    lengths = (resolution, contour_length, distractor_length, num_distractors)
    return Parameters(*(_BY_RESOLUTION[resolution] + lengths))


# Padding, margins, paddle length and thickness, marker radius, seed distance, continuity, and the contrasts
# of targets and distractors: the first fields of `Parameters`.
_BY_RESOLUTION: Mapping[int, tuple[Any, ...]] = {
    # The target contrast is the product of 0.75 (paddle contrast) and 2 (path contrast).
    32: (1, (1,), 2, 0.5, 1.5, 7, 1.0, 1.5, 2.0),
    64: (1, (1,), 5, 1.0, 2.5, 12, 1.8, 0.8, 0.8),
    128: (1, (2, 3), 5, 1.5, 3.0, 20, 1.8, 0.9, 0.9),
    256: (22, (3,), 5, 2.0, 5.0, 27, 1.8, 1.0, 1.0),
}


def generate(resolution: int, difficulty: str, *, seed: int, start: int, stop: int) -> Drawn:
    """Draws images `start` to `stop - 1` of the sequence that a seed determines.

    One core draws about 3,000 hard images per second at 32 pixels, 120 at 64, 175 at 128 and 3,000 at 256.
    The first call on a machine compiles the generator, which takes ten seconds.

    Raises:
      ValueError: The resolution or the difficulty is unknown, or not 0 <= start <= stop.
    """
    return draw(parameters(resolution, difficulty), seed=seed, start=start, stop=stop)


def draw(chosen: Parameters, *, seed: int, start: int, stop: int) -> Drawn:
    """Draws images with any parameters; see `generate`."""
    from lra.data import pathfinder_kernels as kernels  # importing numba is slow

    if not 0 <= start <= stop:
        raise ValueError(
            f"Images {start} to {stop} were requested; choose 0 <= start <= stop, stop excluded."
        )
    n, side = stop - start, chosen.resolution
    drawn = Drawn(
        images=np.empty((n, side, side), np.uint8),
        labels=np.empty(n, np.int32),
        targets=np.empty((n, 2, chosen.contour_length, 3), np.int16),
        distractors=np.zeros((n, chosen.num_distractors, chosen.distractor_length, 3), np.int16),
        marked=np.empty((n, 2), np.int8),
        num_distractors=np.empty(n, np.int32),
        restarts=np.empty(n, np.int32),
    )
    stream = f"pathfinder {side} {chosen.contour_length} {seed}"
    key = np.frombuffer(hashlib.sha256(stream.encode()).digest(), "<u8").astype(np.uint64)
    kernels.draw(*_tables(chosen), key, start, drawn)
    return drawn


# --- Tables ---------------------------------------------------------------------------------------


@functools.lru_cache
def _tables(
    chosen: Parameters,
) -> tuple["kernels.Scene", tuple["kernels.Stamps", "kernels.Stamps"]]:
    from lra.data import pathfinder_kernels as kernels

    stamps = [_stamps(chosen, margin) for margin in chosen.margins]
    degrees = [math.radians(degree) for degree in range(360)]
    scene = kernels.Scene(
        resolution=chosen.resolution,
        padding=chosen.padding,
        seed_distance=chosen.seed_distance,
        contour_length=chosen.contour_length,
        distractor_length=chosen.distractor_length,
        num_distractors=chosen.num_distractors,
        num_margins=len(stamps),
        ring=_steps(degrees, chosen.seed_distance),
        max_addable=_max_addable(),
        marker=_marker_stamps(chosen.marker_radius) / 255,
    )
    return scene, (stamps[0], stamps[-1])


def _stamps(chosen: Parameters, margin: int) -> "kernels.Stamps":
    from lra.data import pathfinder_kernels as kernels

    length, thickness = chosen.paddle_length, chosen.paddle_thickness
    seeds = [math.radians(degree) for degree in range(-180, 180)]
    candidates = _candidates(length + margin)
    turned = [math.atan2(y, x) for y, x in candidates]
    # All paddles except the first are drawn from head to tail.
    drawn_at = seeds + [_opposite(direction) for direction in turned]
    unique: dict[tuple[int, int], int] = {}
    stamp_of = [
        unique.setdefault(_fine_end(direction, length, thickness, margin), len(unique))
        for direction in drawn_at
    ]
    pairs = [paddle_stamp(end, length, thickness, margin) for end in unique]
    lines, occupied = (np.stack(stamps) for stamps in zip(*pairs, strict=True))
    rooms = [_room(stamp, length + margin) for stamp in occupied]
    most_room = max(map(len, rooms))
    return kernels.Stamps(
        stamp_of=np.array(stamp_of, np.int64),
        target=_brightness(lines, chosen.target_contrast),
        distractor=_brightness(lines, chosen.distractor_contrast),
        occupied=occupied,
        box=np.stack([_box(stamp) for stamp in np.maximum(lines, occupied)]),
        room=np.stack(
            [np.pad(room, ((most_room - len(room), 0), (0, 0)), "edge") for room in rooms]
        ),
        room_box=np.stack([np.stack([room.min(0), room.max(0)], 1).ravel() for room in rooms]),
        has_no_seed=np.array([_has_no_seed(room, chosen.resolution) for room in rooms]),
        disc=np.argwhere(_disc(margin)) - margin,
        candidates=np.array(candidates, np.int64),
        weights=_weights(seeds + turned, turned, chosen.continuity),
        advance=_steps(seeds + turned, length + 2 * margin),
        head=_steps(seeds, length),
        back=_steps([_opposite(direction) for direction in seeds], length + margin),
    )


def _candidates(radius: int) -> list[tuple[int, int]]:
    """Returns offsets (y, x) of pixels on a circle: points one pixel apart, rounded down."""
    angles = [step / radius for step in range(math.ceil(2 * math.pi * radius))]
    points = {
        (math.floor(radius * math.sin(angle)), math.floor(radius * math.cos(angle)))
        for angle in angles
    }
    return sorted(points)


def _weights(before: Sequence[float], after: Sequence[float], continuity: float) -> _Ints:
    """Returns the weights of turns between directions, [P, K]; going straight has `WEIGHT_ONE`."""
    turn = np.abs(np.subtract.outer(before, after))
    turn = np.minimum(turn, 2 * math.pi - turn)
    cosine = np.cos(np.minimum(continuity * turn, math.pi / 2))
    return np.rint(cosine**2 * WEIGHT_ONE).astype(np.int64)


def _steps(directions: Sequence[float], distance: float) -> _Floats:
    """Returns displacements (y, x) of length `distance` in each direction, [N, 2]."""
    sines_and_cosines = [(_taylor(angle, 1), _taylor(angle, 0)) for angle in directions]
    return distance * np.array(sines_and_cosines)


@functools.lru_cache(maxsize=8192)
def _taylor(angle: float, power: int) -> float:
    """Returns the correctly rounded sine (`power` 1) or cosine (0), by integer arithmetic.

    The last bit matters because coordinates are rounded up: ceil(3 + 4 sin π) is 4. Math libraries
    differ in this bit.
    """
    one = 1 << 160
    numerator, denominator = angle.as_integer_ratio()
    x = one // denominator * numerator
    term = total = x if power else one
    while term:
        power += 2
        term = -term * x * x // (one * one * power * (power - 1))
        total += term
        if term == -1:
            break
    return total / one


def _opposite(direction: float) -> float:
    return direction + math.pi if direction < 0 else direction - math.pi


def _max_addable() -> _Bytes:
    """Returns the largest occupancy that fits on top of each occupancy, [256]; see `MAX_OVERLAP`."""
    shares = (np.arange(256) / 255).astype(np.float32).astype(np.float64)
    num_fitting = (np.add.outer(shares, shares) < MAX_OVERLAP).sum(1)
    return (num_fitting - 1).astype(np.uint8)


def _brightness(stamps: _Bytes, contrast: float) -> _Floats:
    return (np.arange(256) / 255 * contrast).astype(np.float32).astype(np.float64)[stamps]


def _room(occupied: _Bytes, reach: int) -> _Ints:
    """Returns the offsets from a tail to the pixels that the stamp occupies fully, [D, 2].

    These pixels must be free.

    The original crops the stamp to a square of `reach` pixels around the tail, places the tail one
    pixel below and to the right of the center, and then uses the center as the tail.
    """
    offsets = np.argwhere(occupied == 255) - occupied.shape[0] // 2 + 1
    return offsets[(np.abs(offsets) <= reach).all(1)]


def _has_no_seed(room: _Ints, size: int) -> bool:
    """Returns True if, for some pixel, all offsets in `room` are off the canvas.

    OpenCV's dilation, which the original uses, yields -1.8e308 at such a pixel, and the original finds no
    place for a seed in a mask with a negative pixel. At 32 pixels this excludes 330 of 360 directions.
    """
    covered = np.zeros((size, size), bool)
    for y, x in room:
        covered[max(-y, 0) : size - max(y, 0), max(-x, 0) : size - max(x, 0)] = True
    return not covered.all()


def _box(stamp: _Bytes) -> _Ints:
    (top, left), (bottom, right) = np.argwhere(stamp).min(0), np.argwhere(stamp).max(0) + 1
    return np.array([top, bottom, left, right], np.int64)


# --- Stamps, drawn as in the original -------------------------------------------------------------


def paddle_stamp(
    fine_end: tuple[int, int], length: int, thickness: float, margin: int
) -> tuple[_Bytes, _Bytes]:
    """Draws a line from the center of a canvas to `fine_end`; returns brightness and occupancy [S, S]."""
    reach = length + math.ceil(thickness) + margin
    center, fine_side = reach * ANTIALIAS, 2 * reach * ANTIALIAS + 1
    fine = Image.new("L", (fine_side, fine_side))
    ImageDraw.Draw(fine).line(
        [(center, center), fine_end[::-1]], fill=255, width=round(thickness * ANTIALIAS)
    )
    dilated = _dilated(np.array(fine), _disc(margin * ANTIALIAS))
    side = 2 * reach + 1
    return _shrunk(fine, side), _shrunk(Image.fromarray(dilated), side)


def _fine_end(direction: float, length: int, thickness: float, margin: int) -> tuple[int, int]:
    """Returns the end (y, x), rounded up, of a paddle that starts at the center of the fine canvas."""
    center = (length + math.ceil(thickness) + margin) * ANTIALIAS
    y, x = _steps([direction], length * ANTIALIAS)[0]
    return math.ceil(center + y), math.ceil(center + x)


def marker_image(side: int, y: int, x: int, radius: float) -> _Bytes:
    """Draws a disc around pixel (y, x) on a canvas of `side` × `side` pixels."""
    rows, columns = np.ogrid[: side * ANTIALIAS, : side * ANTIALIAS]
    squares = (rows - y * ANTIALIAS) ** 2 + (columns - x * ANTIALIAS) ** 2
    inside = squares <= (radius * ANTIALIAS) ** 2
    return _shrunk(Image.fromarray(inside.astype(np.uint8) * 255), side)


def _marker_stamps(radius: float) -> _Bytes:
    """Draws a disc at each pixel of a canvas so large that borders do not affect a disc at the center."""
    side = 2 * (math.ceil(radius) + _SUPPORT) + 1
    return np.array([[marker_image(side, y, x, radius) for x in range(side)] for y in range(side)])


def _shrunk(fine: Image.Image, side: int) -> _Bytes:
    return np.array(fine.resize((side, side), Image.Resampling.LANCZOS))


def _disc(radius: int) -> npt.NDArray[np.bool_]:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return np.asarray(x**2 + y**2 <= radius**2)


def _dilated(image: _Bytes, disc: npt.NDArray[np.bool_]) -> _Bytes:
    """Returns the dilated image: the maximum over a disc around each pixel, with zeros outside."""
    radius, side = disc.shape[0] // 2, image.shape[0]
    padded = np.pad(image, radius)
    return np.maximum.reduce([padded[y : y + side, x : x + side] for y, x in np.argwhere(disc)])
