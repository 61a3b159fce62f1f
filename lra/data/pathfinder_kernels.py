"""Part of the Pathfinder generator that numba compiles: everything that runs once or more per image.

A mask holds occupancies as bytes, `mask[y, x] / 255`. Lines and discs are read from precomputed tables
(`Stamps`). Random choices use only integer arithmetic on xoshiro256**. The only floats are coordinates
before rounding and pixel values; all operations on them are correctly rounded in IEEE 754, so results are
equal on every machine.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt

SEED_POSES = 360  # smaller poses are directions from -180 to 179 degrees, the others are candidates
FREE = 76  # maximum occupancy, 0.3, of a pixel that is free for seeds
PADDLE_TRIES, DISTRACTOR_TRIES = 3, 5
# Total weight of candidates below which a path cannot grow.
DEAD_END = math.ceil(1e-4 * 255 * 2**24)
BLIND_TRIES = 256  # random draws of a seed before all free pixels are counted

# Columns of the state of a growing path.
PIVOT_Y, PIVOT_X, POSE, BASE_Y, BASE_X = range(5)

_Bytes = npt.NDArray[np.uint8]
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stamps(NamedTuple):
    """Tables that depend on the margin, for `P` poses, `K` candidates and `U` distinct stamps.

    A paddle has a pose (direction) and a base (center pixel of the stamp). The first paddle has one of
    360 directions, and the base is the tail. For other paddles, the base is the head, which is one of `K`
    candidate pixels around the pivot, and the stamp extends backwards from there.
    """

    stamp_of: _Ints  # [P]
    target: _Floats  # [U, S, S] brightness of paddles of targets
    distractor: _Floats  # [U, S, S] brightness of paddles of distractors
    occupied: _Bytes  # [U, S, S] occupancy of the line and its margin
    box: _Ints  # [U, 4] bounding box (top, bottom, left, right) of the nonzero part; ends excluded
    room: _Ints  # [U, D, 2] offsets from a tail to pixels that must be free; padded with copies of row 0
    room_box: _Ints  # [U, 4] minimum and maximum of y, then of x, in `room`
    has_no_seed: npt.NDArray[np.bool_]  # [U] True: for some pixel, all of `room` is off the canvas
    disc: _Ints  # [G, 2] offsets of a disc with the radius of the margin
    candidates: _Ints  # [K, 2] offsets from the pivot
    weights: _Ints  # [P, K] weight of the turn from a pose to a candidate, in units of 2**-24
    advance: _Floats  # [P, 2] from a pivot to the next one
    head: _Floats  # [360, 2] from the tail of a first paddle to the head
    back: _Floats  # [360, 2] from the head of a first paddle to the pivot


class Scene(NamedTuple):
    """Parameters that do not depend on the margin; `E` is the side of a marker's stamp."""

    resolution: int
    padding: int
    seed_distance: int
    contour_length: int
    distractor_length: int
    num_distractors: int
    num_margins: int
    ring: _Floats  # [360, 2] from the tail of the first target to the tail of the second
    max_addable: _Bytes  # [256] the largest occupancy that can be added to an occupancy
    marker: _Floats  # [E, E, E, E] brightness of a disc at pixel (y, x), on E × E pixels


def _compiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Compiles a function with numba.njit; the result is cached on disk if a cache folder is writable.

    Folders are tried in this order: $NUMBA_CACHE_DIR, __pycache__ beside this file, the user's cache.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # no folder is writable: every process compiles
        return numba.njit(function)


# --- Random numbers -------------------------------------------------------------------------------


@_compiled
def seed_stream(rng: _Words, key: _Words, index: int) -> None:
    """Seeds the stream of image `index` with four outputs of splitmix64."""
    for word in range(4):
        z = key[word] + np.uint64(4 * index + word + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        rng[word] = z ^ (z >> np.uint64(31))


@_compiled
def next_word(rng: _Words) -> np.uint64:
    """Returns the next 64 bits of xoshiro256** 1.0 (Blackman and Vigna, public domain)."""
    result = rng[1] * np.uint64(5)
    result = ((result << np.uint64(7)) | (result >> np.uint64(57))) * np.uint64(9)
    shifted = rng[1] << np.uint64(17)
    rng[2] ^= rng[0]
    rng[3] ^= rng[1]
    rng[1] ^= rng[2]
    rng[0] ^= rng[3]
    rng[2] ^= shifted
    rng[3] = (rng[3] << np.uint64(45)) | (rng[3] >> np.uint64(19))
    return result


@_compiled
def below(rng: _Words, bound: int) -> int:
    """Returns a uniform integer from 0 to `bound - 1`, by rejection sampling."""
    bits = 0
    while (bound - 1) >> bits:
        bits += 1
    if bits == 0:
        return 0
    while True:
        value = int(np.int64(next_word(rng) >> np.uint64(64 - bits)))
        if value < bound:
            return value


# --- Stamps on canvases ---------------------------------------------------------------------------


@_compiled
def _stamp_maximum(
    canvas: npt.NDArray[Any], stamp: npt.NDArray[Any], box: _Ints, y: int, x: int
) -> None:
    """Draws a stamp centered on (y, x): each pixel becomes the maximum of canvas and stamp."""
    top, left = y - stamp.shape[0] // 2, x - stamp.shape[1] // 2
    first, last = max(box[2], -left), min(box[3], canvas.shape[1] - left)
    for i in range(max(box[0], -top), min(box[1], canvas.shape[0] - top)):
        for j in range(first, last):
            if stamp[i, j] > canvas[top + i, left + j]:
                canvas[top + i, left + j] = stamp[i, j]


@_compiled
def _copy(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Copies element by element; compiling `target[:] = source` takes a second longer."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@_compiled
def _fits(canvas: _Bytes, stamp: _Bytes, box: _Ints, most: _Bytes, y: int, x: int) -> bool:
    """Returns True if the sum of both occupancies is below 1.8 at all pixels of the stamp."""
    top, left = y - stamp.shape[0] // 2, x - stamp.shape[1] // 2
    first, last = max(box[2], -left), min(box[3], canvas.shape[1] - left)
    for i in range(max(box[0], -top), min(box[1], canvas.shape[0] - top)):
        for j in range(first, last):
            if stamp[i, j] > most[canvas[top + i, left + j]]:
                return False
    return True


@_compiled
def _max_occupancy(mask: _Bytes, disc: _Ints, y: int, x: int) -> int:
    """Returns the maximum occupancy in a disc around a pixel."""
    size = mask.shape[0]
    most = 0
    for g in range(disc.shape[0]):
        i, j = y + disc[g, 0], x + disc[g, 1]
        if 0 <= i < size and 0 <= j < size and mask[i, j] > most:
            most = mask[i, j]
    return most


# --- Paddles --------------------------------------------------------------------------------------


@_compiled
def _ceil(place: int, step: float) -> int:
    return math.ceil(place + step)


@_compiled
def _inside(y: int, x: int, size: int) -> bool:
    return 0 <= y < size and 0 <= x < size


@_compiled
def _place_first(stamps: Stamps, size: int, direction: int, y: int, x: int, path: _Ints) -> bool:
    """Places the first paddle of a path; returns False if the head or the pivot is off the canvas."""
    head_y = _ceil(y, stamps.head[direction, 0])
    head_x = _ceil(x, stamps.head[direction, 1])
    path[PIVOT_Y] = _ceil(head_y, stamps.back[direction, 0])
    path[PIVOT_X] = _ceil(head_x, stamps.back[direction, 1])
    path[POSE], path[BASE_Y], path[BASE_X] = direction, y, x
    return _inside(head_y, head_x, size) and _inside(path[PIVOT_Y], path[PIVOT_X], size)


@_compiled
def _record(paddles: _Ints, path: _Ints) -> None:
    """Records the latest paddle of a path: pose, base y, base x."""
    paddles[0], paddles[1], paddles[2] = path[POSE], path[BASE_Y], path[BASE_X]


@_compiled
def _occupy(stamps: Stamps, mask: _Bytes, path: _Ints) -> None:
    """Adds the latest paddle of a path to the mask."""
    u = stamps.stamp_of[path[POSE]]
    _stamp_maximum(mask, stamps.occupied[u], stamps.box[u], path[BASE_Y], path[BASE_X])


@_compiled
def _extend(
    rng: _Words, scene: Scene, stamps: Stamps, mask: _Bytes, path: _Ints, cumulative: _Ints
) -> bool:
    """Grows a path by a paddle, and then adds the previous paddle to the mask.

    Candidates are drawn with probability proportional to weight × (1 − crowding). Returns False, with
    the mask unchanged, if the total weight is too small or no draw fits.
    """
    pose = path[POSE]
    pivot_y = _ceil(path[PIVOT_Y], stamps.advance[pose, 0])
    pivot_x = _ceil(path[PIVOT_X], stamps.advance[pose, 1])
    total = 0
    for k in range(stamps.candidates.shape[0]):
        y, x = pivot_y + stamps.candidates[k, 0], pivot_x + stamps.candidates[k, 1]
        weight = stamps.weights[pose, k]
        if weight > 0 and _inside(y, x, scene.resolution):
            total += weight * (255 - _max_occupancy(mask, stamps.disc, y, x))
        cumulative[k] = total
    if total < DEAD_END:
        return False
    for _ in range(PADDLE_TRIES):
        drawn = below(rng, total)
        k = 0
        while cumulative[k] <= drawn:
            k += 1
        y, x = pivot_y + stamps.candidates[k, 0], pivot_x + stamps.candidates[k, 1]
        u = stamps.stamp_of[SEED_POSES + k]
        if _fits(mask, stamps.occupied[u], stamps.box[u], scene.max_addable, y, x):
            _occupy(stamps, mask, path)
            path[PIVOT_Y], path[PIVOT_X] = pivot_y, pivot_x
            path[POSE], path[BASE_Y], path[BASE_X] = SEED_POSES + k, y, x
            return True
    return False


# --- Targets --------------------------------------------------------------------------------------


@_compiled
def _seed_targets(rng: _Words, scene: Scene, stamps: Stamps, paths: _Ints) -> bool:
    """Places the first paddle of each target; the tails are `seed_distance` pixels apart."""
    size = scene.resolution
    found = False
    for _ in range(PADDLE_TRIES):
        direction = below(rng, SEED_POSES)
        u = stamps.stamp_of[direction]
        if stamps.has_no_seed[u]:
            return False
        room = stamps.room_box[u]
        border = 2 * scene.seed_distance
        low_y, low_x = max(border - room[0], 0), max(border - room[2], 0)
        rows = min(size - border - room[1], size) - low_y
        columns = min(size - border - room[3], size) - low_x
        if rows <= 0 or columns <= 0:
            return False
        y, x = low_y + below(rng, rows), low_x + below(rng, columns)
        if _place_first(stamps, size, direction, y, x, paths[0]):
            found = True
            break
    if not found:
        return False
    for _ in range(PADDLE_TRIES):
        direction = below(rng, SEED_POSES)
        place = below(rng, 360)
        y = int(np.rint(paths[0, BASE_Y] + scene.ring[place, 0]))
        x = int(np.rint(paths[0, BASE_X] + scene.ring[place, 1]))
        if _place_first(stamps, size, direction, y, x, paths[1]):
            return True
    return False


@_compiled
def _grow_targets(
    rng: _Words,
    scene: Scene,
    stamps: Stamps,
    mask: _Bytes,
    paths: _Ints,
    paddles: _Ints,
    cumulative: _Ints,
) -> bool:
    """Grows both targets alternately and records them in `paddles`; returns False if a paddle fails."""
    if not _seed_targets(rng, scene, stamps, paths):
        return False
    pad, size = scene.padding, scene.resolution
    mask[:] = 0
    mask[:pad], mask[size - pad :] = 255, 255
    mask[:, :pad], mask[:, size - pad :] = 255, 255
    for s in range(2):
        _record(paddles[s, 0], paths[s])
    for paddle in range(1, scene.contour_length):
        for s in range(2):
            if not _extend(rng, scene, stamps, mask, paths[s], cumulative):
                return False
            _record(paddles[s, paddle], paths[s])
    _occupy(stamps, mask, paths[1])  # the last paddle of the first target is never added
    return True


# --- Distractors ----------------------------------------------------------------------------------


@_compiled
def _is_free(mask: _Bytes, room: _Ints, y: int, x: int) -> bool:
    """Returns True if there is room for a first paddle; pixels at the border count as occupied."""
    last = mask.shape[0] - 1
    for d in range(room.shape[0]):
        i, j = y + room[d, 0], x + room[d, 1]
        if _inside(i, j, last + 1) and (
            mask[i, j] > FREE or i == 0 or i == last or j == 0 or j == last
        ):
            return False
    return True


@_compiled
def _free_tail(rng: _Words, mask: _Bytes, room: _Ints) -> int:
    """Draws a tail uniformly from the free pixels, as y × size + x; returns -1 if there is none.

    Random draws are tried first, because usually many pixels are free. If they fail, the free pixels are
    counted. Both methods draw from the uniform distribution.
    """
    size = mask.shape[0]
    for _ in range(BLIND_TRIES):
        place = below(rng, size * size)
        if _is_free(mask, room, place // size, place % size):
            return place
    count = 0
    for place in range(size * size):
        count += _is_free(mask, room, place // size, place % size)
    if count == 0:
        return -1
    skip = below(rng, count)
    place = -1
    while skip >= 0:
        place += 1
        skip -= _is_free(mask, room, place // size, place % size)
    return place


@_compiled
def _seed_distractor(rng: _Words, scene: Scene, stamps: Stamps, mask: _Bytes, path: _Ints) -> bool:
    """Places the first paddle of a distractor if at least a hundredth of the canvas is free."""
    size = scene.resolution
    free = 0
    for y in range(size):
        for x in range(size):
            free += mask[y, x] <= FREE
    if 100 * free < size * size:
        return False
    for _ in range(PADDLE_TRIES):
        direction = below(rng, SEED_POSES)
        u = stamps.stamp_of[direction]
        tail = -1 if stamps.has_no_seed[u] else _free_tail(rng, mask, stamps.room[u])
        if tail < 0:
            return False
        if _place_first(stamps, size, direction, tail // size, tail % size, path):
            return True
    return False


@_compiled
def _grow_distractor(
    rng: _Words,
    scene: Scene,
    stamps: Stamps,
    mask: _Bytes,
    path: _Ints,
    paddles: _Ints,
    cumulative: _Ints,
) -> bool:
    """Grows a distractor and records it in `paddles`; on failure returns False with the mask modified."""
    if not _seed_distractor(rng, scene, stamps, mask, path):
        return False
    _record(paddles[0], path)
    for paddle in range(1, scene.distractor_length):
        if not _extend(rng, scene, stamps, mask, path, cumulative):
            return False
        _record(paddles[paddle], path)
    _occupy(stamps, mask, path)
    return True


# --- Images ---------------------------------------------------------------------------------------


@_compiled
def _paint(canvas: _Floats, stamps: Stamps, brightness: _Floats, paddles: _Ints) -> None:
    """Draws paddles on a canvas; overlapping pixels take the maximum."""
    for paddle in range(paddles.shape[0]):
        u = stamps.stamp_of[paddles[paddle, 0]]
        _stamp_maximum(canvas, brightness[u], stamps.box[u], paddles[paddle, 1], paddles[paddle, 2])


@_compiled
def _mark(canvas: _Floats, scene: Scene, y: int, x: int) -> None:
    """Draws a marker; near a border, uses the stamp that was drawn at this distance from a border."""
    size, side = scene.resolution, scene.marker.shape[0]
    row = y if y < side // 2 else max(side // 2, y - size + side)
    column = x if x < side // 2 else max(side // 2, x - size + side)
    for i in range(side):
        for j in range(side):
            here = y - row + i, x - column + j
            canvas[here] = max(canvas[here], scene.marker[row, column, i, j])


@_compiled
def _expose(canvas: _Floats, image: _Bytes) -> None:
    """Rescales a canvas to bytes from 0 to 255, rounded half up."""
    least, greatest = canvas[0, 0], canvas[0, 0]
    for value in canvas.flat:
        least, greatest = min(least, value), max(greatest, value)
    scale = 255.0 / (greatest - least)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            image[y, x] = np.uint8((canvas[y, x] - least) * scale + 0.5)


@_compiled
def draw(
    scene: Scene,
    stamps_of_margins: tuple[Stamps, Stamps],
    key: _Words,
    start: int,
    out: Any,  # the `Drawn` of pathfinder_generator, which imports this module
) -> None:
    """Fills `out` with images, from image number `start` on."""
    size = scene.resolution
    rng = np.empty(4, np.uint64)
    mask = np.empty((size, size), np.uint8)
    attempt = np.empty((size, size), np.uint8)
    canvas = np.empty((size, size), np.float64)
    paths = np.empty((2, 5), np.int64)
    targets = np.empty((2, scene.contour_length, 3), np.int64)
    distractor = np.empty((scene.distractor_length, 3), np.int64)
    cumulative = np.empty(1024, np.int64)
    for n in range(out.labels.shape[0]):
        seed_stream(rng, key, start + n)
        label = below(rng, 2)
        stamps = stamps_of_margins[below(rng, scene.num_margins)]

        restarts = 0
        while not _grow_targets(rng, scene, stamps, mask, paths, targets, cumulative):
            restarts += 1
        canvas[:] = 0
        for s in range(2):
            _paint(canvas, stamps, stamps.target, targets[s])
            _copy(targets[s], out.targets[n, s])

        num_distractors = 0
        for _ in range(scene.num_distractors):
            for _ in range(DISTRACTOR_TRIES):
                _copy(mask, attempt)
                if _grow_distractor(rng, scene, stamps, attempt, paths[0], distractor, cumulative):
                    mask, attempt = attempt, mask
                    _paint(canvas, stamps, stamps.distractor, distractor)
                    _copy(distractor, out.distractors[n, num_distractors])
                    num_distractors += 1
                    break

        first = below(rng, 2)
        second = first if label == 1 else 1 - first
        _mark(canvas, scene, targets[first, 0, 1], targets[first, 0, 2])
        _mark(canvas, scene, targets[second, -1, 1], targets[second, -1, 2])
        _expose(canvas, out.images[n])
        out.labels[n] = label
        out.marked[n, 0], out.marked[n, 1] = first, second
        out.num_distractors[n] = num_distractors
        out.restarts[n] = restarts
