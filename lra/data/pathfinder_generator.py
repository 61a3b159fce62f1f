"""Pathfinder's images: two dashed paths, shorter ones, and two discs, the ends of one path or not.

    images = generate(32, "hard", seed=0, start=0, stop=1000).images    # [1000, 32, 32], bytes

An image is a function of its resolution, difficulty, seed and number alone: any part of a stream can
be drawn anywhere, and comes out the same.

Two targets of `contour_length` paddles grow in turns. The next paddle ends on a pixel near a circle
around the pivot, the likelier the straighter the turn and the emptier its surroundings; where one
finds no place, both targets start again. Distractors, a third as long, grow in what is left. The
first marker sits on the tail of a target; the second on the head of the same (label 1) or of the
other (label 0).

Source: drewlinsley/pathfinder at ab9c130 (snakes2.py, snakes.py; © 2018 Junkyung Kim, MIT), with the
parameters of google-research/long-range-arena, lra_benchmarks/data/pathfinder.py at 211e07d. Its
distribution is kept to the quirk: masks that enter a round late, the last paddle of the first target
that never does, coordinates rounded up or cut off, bytes stretched before every Lanczos filter and
again at the end, room for a seed looked up a pixel off its tail, directions no seed ever takes.
Differs from it: every image has a stream of its own. Paddles and discs are stamps prepared once, each
pixel for pixel what the original draws anew. Weights of turns are rounded to 2**-24. Single paddles,
segmentation and lists of contrasts, which the Long Range Arena does not use, are left out.
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
DIFFICULTIES: Mapping[str, int] = {"easy": 6, "intermediate": 9, "hard": 14}  # paddles of a target

ANTIALIAS = 2  # pixels of the fine canvas a pixel
PADDLE_TRIES = 3
DISTRACTOR_TRIES = 5
OVERLAP = 1.8  # sum of two occupancies from which on a paddle does not fit
DEAD_END = 1e-4  # total weight of all candidates
WEIGHT_ONE = 2**24

_SUPPORT = 6  # pixels that Lanczos reaches from a disc's edge, borders' own weights included

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """What the original's arguments are for a resolution and a difficulty; lengths in pixels.

    Args:
      resolution: side of the image.
      padding: border that targets may not enter.
      margins: around paddles; every image draws one of them.
      paddle_length: of a dash.
      paddle_thickness: of a dash, a multiple of a half.
      marker_radius: of the two discs.
      seed_distance: between the tails of the targets.
      continuity: how much a turn weighs: a paddle at an angle of θ has the weight
        cos(min(continuity · |θ|, π / 2))².
      contour_length: paddles of a target.
      distractor_length: paddles of a distractor.
      num_distractors: that are tried.
      target_contrast: brightness of targets; that of markers is 1.
      distractor_contrast: brightness of distractors.
    """

    resolution: int
    padding: int
    margins: tuple[int, ...]
    paddle_length: int
    paddle_thickness: float
    marker_radius: float
    seed_distance: int
    continuity: float
    contour_length: int
    distractor_length: int
    num_distractors: int
    target_contrast: float
    distractor_contrast: float


class Drawn(NamedTuple):
    """Images and what is known of them; N = stop − start."""

    images: _Bytes  # [N, R, R]
    labels: npt.NDArray[np.int32]  # [N]; 1 where both markers end the same target
    path_length: npt.NDArray[np.float32]  # [N] pixels along the first marker's target, end to end
    marker_distance: npt.NDArray[np.float32]  # [N] pixels between the centres of the markers
    num_distractors: npt.NDArray[np.int32]  # [N] that found a place
    restarts: npt.NDArray[np.int32]  # [N] attempts at the targets that failed


class Geometry(NamedTuple):
    """Where everything is. A paddle is (pose, y, x).

    The first paddle of a path has a pose below 360, its direction in degrees plus 180, and the place
    of its tail; all others a pose that numbers the direction of their turn, and the place of their
    head.
    """

    targets: npt.NDArray[np.int16]  # [N, 2, contour_length, 3]
    distractors: npt.NDArray[np.int16]  # [N, num_distractors, distractor_length, 3], then zeros
    marked: npt.NDArray[np.int8]  # [N, 2]: the targets under the first and the second marker


def parameters(resolution: int, difficulty: str) -> Parameters:
    """The parameters of the Long Range Arena.

    Raises:
      ValueError: there is no such resolution or difficulty.

    Source: the class docstrings of lra_benchmarks/data/pathfinder.py, which spell out the hard ones.
    The folders' names give the other lengths; that the numbers of distractors follow from the same
    division as the hard ones' is our reading.
    """
    if resolution not in RESOLUTIONS:
        raise ValueError(
            f"Pathfinder is not drawn at resolution {resolution!r}: choose one of"
            f" {', '.join(map(str, RESOLUTIONS))}."
        )
    if difficulty not in DIFFICULTIES:
        raise ValueError(
            f"Pathfinder has no difficulty {difficulty!r}: choose one of {', '.join(DIFFICULTIES)}."
        )
    contour_length = DIFFICULTIES[difficulty]
    distractor_length = contour_length // 3
    distractor_paddles = {32: 20, 64: 22, 128: 35, 256: 30}[resolution]
    return Parameters(
        **_BY_RESOLUTION[resolution],
        resolution=resolution,
        contour_length=contour_length,
        distractor_length=distractor_length,
        num_distractors=distractor_paddles // distractor_length,
    )


_BY_RESOLUTION: Mapping[int, dict[str, Any]] = {
    32: {
        "padding": 1,
        "margins": (1,),
        "paddle_length": 2,
        "paddle_thickness": 0.5,
        "marker_radius": 1.5,
        "seed_distance": 7,
        "continuity": 1.0,
        "target_contrast": 1.5,  # 0.75 of the paddle × 2 of the path
        "distractor_contrast": 2.0,
    },
    64: {
        "padding": 1,
        "margins": (1,),
        "paddle_length": 5,
        "paddle_thickness": 1.0,
        "marker_radius": 2.5,
        "seed_distance": 12,
        "continuity": 1.8,
        "target_contrast": 0.8,
        "distractor_contrast": 0.8,
    },
    128: {
        "padding": 1,
        "margins": (2, 3),
        "paddle_length": 5,
        "paddle_thickness": 1.5,
        "marker_radius": 3.0,
        "seed_distance": 20,
        "continuity": 1.8,
        "target_contrast": 0.9,
        "distractor_contrast": 0.9,
    },
    256: {
        "padding": 22,
        "margins": (3,),
        "paddle_length": 5,
        "paddle_thickness": 2.0,
        "marker_radius": 5.0,
        "seed_distance": 27,
        "continuity": 1.8,
        "target_contrast": 1.0,
        "distractor_contrast": 1.0,
    },
}


def generate(resolution: int, difficulty: str, *, seed: int, start: int, stop: int) -> Drawn:
    """Draws the images `start` to `stop - 1` of the stream of `seed`.

    On one core a second gives some 3,000 images of 32 pixels, 110 of 64, 190 of 128 and 3,000 of 256;
    the first call on a machine also compiles for ten seconds.

    Raises:
      ValueError: there is no such resolution or difficulty, or not 0 <= start <= stop.
    """
    drawn, _ = draw(parameters(resolution, difficulty), seed=seed, start=start, stop=stop)
    return drawn


def draw(chosen: Parameters, *, seed: int, start: int, stop: int) -> tuple[Drawn, Geometry]:
    """`generate` with parameters of one's own, and where the paths are."""
    from lra.data import pathfinder_kernels as kernels  # numba takes its time to import

    if not 0 <= start <= stop:
        raise ValueError(
            f"Images {start} to {stop} were asked for; choose 0 <= start <= stop, stop excluded."
        )
    n, side = stop - start, chosen.resolution
    out = kernels.Out(
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
    kernels.draw(*_tables(chosen), key, start, out)

    rows = np.arange(n)
    first_path = out.targets[rows, out.marked[:, 0], :, 1:].astype(np.float64)
    second_end = out.targets[rows, out.marked[:, 1], -1, 1:]
    drawn = Drawn(
        images=out.images,
        labels=out.labels,
        path_length=_norm(np.diff(first_path, axis=1)).sum(1).astype(np.float32),
        marker_distance=_norm(first_path[:, 0] - second_end).astype(np.float32),
        num_distractors=out.num_distractors,
        restarts=out.restarts,
    )
    return drawn, Geometry(out.targets, out.distractors, out.marked)


def _norm(vectors: _Floats) -> _Floats:
    return np.asarray(np.sqrt((vectors**2).sum(-1)))


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
        distractor_tries=DISTRACTOR_TRIES,
        paddle_tries=PADDLE_TRIES,
        num_margins=len(stamps),
        dead_end=math.ceil(DEAD_END * 255 * WEIGHT_ONE),
        ring=_steps(degrees, chosen.seed_distance),
        most=_greatest_fitting(),
        marker=_marker_stamps(chosen.marker_radius) / 255,
    )
    return scene, (stamps[0], stamps[-1])


def _stamps(chosen: Parameters, margin: int) -> "kernels.Stamps":
    from lra.data import pathfinder_kernels as kernels

    length, thickness = chosen.paddle_length, chosen.paddle_thickness
    seeds = [math.radians(degree) for degree in range(-180, 180)]
    candidates = _candidates(length + margin)
    turned = [math.atan2(y, x) for y, x in candidates]
    # A paddle after the first is drawn backwards, from its head.
    drawn_at = seeds + [_opposite(direction) for direction in turned]
    different: dict[tuple[int, int], int] = {}
    stamp_of = [
        different.setdefault(_fine_end(direction, length, thickness, margin), len(different))
        for direction in drawn_at
    ]
    pairs = [paddle_stamp(end, length, thickness, margin) for end in different]
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
        seeds_nothing=np.array([_seeds_nothing(room, chosen.resolution) for room in rooms]),
        disc=np.argwhere(_disc(margin)) - margin,
        candidates=np.array(candidates, np.int64),
        weights=_weights(seeds + turned, turned, chosen.continuity),
        advance=_steps(seeds + turned, length + 2 * margin),
        head=_steps(seeds, length),
        back=_steps([_opposite(direction) for direction in seeds], length + margin),
    )


def _candidates(radius: int) -> list[tuple[int, int]]:
    """Offsets (y, x) of the pixels near a circle: points a pixel apart, cut off to integers."""
    angles = [step / radius for step in range(math.ceil(2 * math.pi * radius))]
    points = {
        (math.floor(radius * math.sin(angle)), math.floor(radius * math.cos(angle)))
        for angle in angles
    }
    return sorted(points)


def _weights(before: Sequence[float], after: Sequence[float], continuity: float) -> _Ints:
    """The weight of a turn from each direction to each, [P, K]; `WEIGHT_ONE` is no turn."""
    turn = np.abs(np.subtract.outer(before, after))
    turn = np.minimum(turn, 2 * math.pi - turn)
    cosine = np.cos(np.minimum(continuity * turn, math.pi / 2))
    return np.rint(cosine**2 * WEIGHT_ONE).astype(np.int64)


def _steps(directions: Sequence[float], distance: float) -> _Floats:
    """Displacements (y, x), [.., 2]."""
    return np.array([(distance * _sine(angle), distance * _cosine(angle)) for angle in directions])


@functools.lru_cache(maxsize=4096)
def _sine(angle: float) -> float:
    return _taylor(angle, 1)


@functools.lru_cache(maxsize=4096)
def _cosine(angle: float) -> float:
    return _taylor(angle, 0)


def _taylor(angle: float, power: int) -> float:
    """The sine (`power` 1) or cosine (0), correctly rounded, in integers.

    Its last bit decides where paths run, because coordinates are rounded up: ceil(3 + 4 sin π) is 4.
    Libraries differ in that bit from machine to machine.
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


def _greatest_fitting() -> _Bytes:
    """Per byte of old occupancy the greatest byte of a new one with a sum below `OVERLAP`."""
    shares = (np.arange(256) / 255).astype(np.float32).astype(np.float64)
    num_fitting = (np.add.outer(shares, shares) < OVERLAP).sum(1)
    return (num_fitting - 1).astype(np.uint8)


def _brightness(stamps: _Bytes, contrast: float) -> _Floats:
    return (np.arange(256) / 255 * contrast).astype(np.float32).astype(np.float64)[stamps]


def _room(occupied: _Bytes, reach: int) -> _Ints:
    """Offsets that must be free around a tail: saturated pixels, [D, 2].

    The original cuts the stamp to a square of `reach` pixels around the tail, puts the tail a pixel
    below and to the right of its middle, and then takes the middle for the tail.
    """
    offsets = np.argwhere(occupied == 255) - occupied.shape[0] // 2 + 1
    return offsets[(np.abs(offsets) <= reach).all(1)]


def _seeds_nothing(room: _Ints, size: int) -> bool:
    """Whether some pixel's room lies off the canvas as a whole.

    The original's dilation (OpenCV's) leaves -1.8e308 there, and one negative pixel is to it a mask
    without a place for any seed. At 32 pixels 330 of the 360 directions come to nothing.
    """
    covered = np.zeros((size, size), bool)
    for y, x in room:
        covered[max(-y, 0) : size - max(y, 0), max(-x, 0) : size - max(x, 0)] = True
    return not covered.all()


def _box(stamp: _Bytes) -> _Ints:
    (top, left), (bottom, right) = np.argwhere(stamp).min(0), np.argwhere(stamp).max(0) + 1
    return np.array([top, bottom, left, right], np.int64)


# --- Stamps, as the original draws them -----------------------------------------------------------


def paddle_stamp(
    fine_end: tuple[int, int], length: int, thickness: float, margin: int
) -> tuple[_Bytes, _Bytes]:
    """A line from the middle of a canvas to `fine_end`, and what it occupies; both [S, S]."""
    reach = length + math.ceil(thickness) + margin
    middle, fine_side = reach * ANTIALIAS, 2 * reach * ANTIALIAS + 1
    fine = Image.new("L", (fine_side, fine_side))
    ImageDraw.Draw(fine).line(
        [(middle, middle), fine_end[::-1]], fill=255, width=round(thickness * ANTIALIAS)
    )
    dilated = _dilated(np.array(fine), _disc(margin * ANTIALIAS))
    side = 2 * reach + 1
    return _shrunk(fine, side), _shrunk(Image.fromarray(dilated), side)


def _fine_end(direction: float, length: int, thickness: float, margin: int) -> tuple[int, int]:
    """Where a paddle from the middle of the fine canvas ends, (y, x), rounded up."""
    middle = (length + math.ceil(thickness) + margin) * ANTIALIAS
    y, x = _steps([direction], length * ANTIALIAS)[0]
    return math.ceil(middle + y), math.ceil(middle + x)


def marker_image(side: int, y: int, x: int, radius: float) -> _Bytes:
    """A disc around pixel (y, x) of a canvas of `side` × `side`."""
    rows, columns = np.ogrid[: side * ANTIALIAS, : side * ANTIALIAS]
    inside = (rows - y * ANTIALIAS) ** 2 + (columns - x * ANTIALIAS) ** 2 <= (
        radius * ANTIALIAS
    ) ** 2
    return _shrunk(Image.fromarray(inside.astype(np.uint8) * 255), side)


def _marker_stamps(radius: float) -> _Bytes:
    """Discs at every pixel of the smallest canvas whose middle lies as far inside as any can."""
    side = 2 * (math.ceil(radius) + _SUPPORT) + 1
    return np.array([[marker_image(side, y, x, radius) for x in range(side)] for y in range(side)])


def _shrunk(fine: Image.Image, side: int) -> _Bytes:
    return np.array(fine.resize((side, side), Image.Resampling.LANCZOS))


def _disc(radius: int) -> npt.NDArray[np.bool_]:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return np.asarray(x**2 + y**2 <= radius**2)


def _dilated(image: _Bytes, disc: npt.NDArray[np.bool_]) -> _Bytes:
    """The greatest value within the disc around each pixel; nothing lies outside of the image."""
    radius, side = disc.shape[0] // 2, image.shape[0]
    padded = np.pad(image, radius)
    return np.maximum.reduce([padded[y : y + side, x : x + side] for y, x in np.argwhere(disc)])
