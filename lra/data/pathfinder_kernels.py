"""The compiled half of the Pathfinder generator: everything that happens once an image or oftener.

Canvases hold bytes: occupancy `mask[y, x] / 255`, and picture values. What lines and discs look like
comes in tables of stamps (`Stamps`), so nothing here draws, resizes or calls a sine. All choices are
integer arithmetic on xoshiro256**; the only floats are coordinates about to be rounded and the
picture, whose operations IEEE 754 fixes to the last bit.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt

SEED_POSES = 360  # poses below are the whole degrees -180 to 179, the others candidates
FREE = 76  # mask values up to 0.3 leave a pixel free for seeds
BLIND_TRIES = 256  # for a free seed, before all of them are counted

# Columns of a snake's state.
PIVOT_Y, PIVOT_X, POSE, BASE_Y, BASE_X = range(5)

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Stamps(NamedTuple):
    """All that depends on the margin. `P` poses, `K` candidates, `U` different stamps.

    A paddle has a pose (its direction) and a base (the pixel its stamp is centred on). A first
    paddle points from its tail, which is the base, in one of 360 directions. Every other one was
    chosen among `K` candidates, pixels around the pivot, and points from there backwards.
    """

    stamp_of: npt.NDArray[np.int64]  # [P]
    target: npt.NDArray[np.float64]  # [U, S, S] brightness of a target's paddle
    distractor: npt.NDArray[np.float64]  # [U, S, S] and of a distractor's
    occupied: npt.NDArray[np.uint8]  # [U, S, S] the line and its margin
    box: npt.NDArray[np.int64]  # [U, 4] top, bottom, left, right of what is not zero; ends excluded
    room: npt.NDArray[np.int64]  # [U, D, 2] offsets from a tail that must be free; row 0 repeats
    room_box: npt.NDArray[np.int64]  # [U, 4] least and greatest offset: y, y, x, x
    seeds_nothing: npt.NDArray[np.bool_]  # [U] the room of some pixel lies off the canvas
    disc: npt.NDArray[np.int64]  # [G, 2] offsets of the margin's disc
    candidates: npt.NDArray[np.int64]  # [K, 2] offsets from the pivot
    weights: npt.NDArray[np.int64]  # [P, K] of a turn from a pose to a candidate, 2**24 is one
    advance: npt.NDArray[np.float64]  # [P, 2] from a pivot to the next
    head: npt.NDArray[np.float64]  # [360, 2] from a tail to the head
    back: npt.NDArray[np.float64]  # [360, 2] from that head to the pivot


class Scene(NamedTuple):
    """All that does not depend on the margin. `E` is the side of a marker's stamp."""

    resolution: int
    padding: int
    seed_distance: int
    contour_length: int
    distractor_length: int
    num_distractors: int
    distractor_tries: int
    paddle_tries: int
    num_margins: int
    dead_end: int  # total weight of the candidates below which there is no way on
    ring: npt.NDArray[np.float64]  # [360, 2] from the first tail to the second
    most: npt.NDArray[np.uint8]  # [256] the greatest new occupancy that fits on an old one
    marker: npt.NDArray[np.float64]  # [E, E, E, E] brightness of a disc at (y, x) of E × E pixels


class Out(NamedTuple):
    """Where the results of `N` images go. A paddle is its pose, base y, base x."""

    images: npt.NDArray[np.uint8]  # [N, R, R]
    labels: npt.NDArray[np.int32]  # [N]
    targets: npt.NDArray[np.int16]  # [N, 2, contour_length, 3]
    distractors: npt.NDArray[np.int16]  # [N, num_distractors, distractor_length, 3]
    marked: npt.NDArray[np.int8]  # [N, 2] the targets under the first marker and the second
    num_distractors: npt.NDArray[np.int32]  # [N]
    restarts: npt.NDArray[np.int32]  # [N]


def _compiled(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """numba.njit, remembered on the disk where there is a folder to write to.

    Folders are tried in this order: $NUMBA_CACHE_DIR, __pycache__ beside this file, the user's cache.
    """
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # none of them can be written to: every process compiles for itself
        return numba.njit(function)


# --- Random numbers -------------------------------------------------------------------------------


@_compiled
def seed_stream(rng: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64], index: int) -> None:
    """Starts the stream of image `index`: four words, each splitmix64's output at its own place."""
    for word in range(4):
        z = key[word] + np.uint64(4 * index + word + 1) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        rng[word] = z ^ (z >> np.uint64(31))


@_compiled
def next_word(rng: npt.NDArray[np.uint64]) -> np.uint64:
    """The next 64 bits of xoshiro256** 1.0 (Blackman and Vigna, public domain)."""
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
def below(rng: npt.NDArray[np.uint64], bound: int) -> int:
    """A uniform integer from 0 to `bound - 1`, by rejection: no number is likelier than another."""
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
def _press(
    canvas: npt.NDArray[Any],
    stamp: npt.NDArray[Any],
    box: npt.NDArray[np.int64],
    y: int,
    x: int,
) -> None:
    """Takes the maximum of a canvas and of a stamp centred on (y, x), cut at the borders."""
    top, left = y - stamp.shape[0] // 2, x - stamp.shape[1] // 2
    first, last = max(box[2], -left), min(box[3], canvas.shape[1] - left)
    for i in range(max(box[0], -top), min(box[1], canvas.shape[0] - top)):
        for j in range(first, last):
            if stamp[i, j] > canvas[top + i, left + j]:
                canvas[top + i, left + j] = stamp[i, j]


@_compiled
def _copy(source: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
    """Element by element: numba takes a second longer to compile `target[:] = source`."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            target[i, j] = source[i, j]


@_compiled
def _fits(
    canvas: npt.NDArray[np.uint8],
    stamp: npt.NDArray[np.uint8],
    box: npt.NDArray[np.int64],
    most: npt.NDArray[np.uint8],
    y: int,
    x: int,
) -> bool:
    """Whether occupancy old + new stays below 1.8 at every pixel of the stamp."""
    top, left = y - stamp.shape[0] // 2, x - stamp.shape[1] // 2
    first, last = max(box[2], -left), min(box[3], canvas.shape[1] - left)
    for i in range(max(box[0], -top), min(box[1], canvas.shape[0] - top)):
        for j in range(first, last):
            if stamp[i, j] > most[canvas[top + i, left + j]]:
                return False
    return True


@_compiled
def _crowding(mask: npt.NDArray[np.uint8], disc: npt.NDArray[np.int64], y: int, x: int) -> int:
    """The greatest occupancy within the margin of a pixel."""
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
def _start(
    stamps: Stamps, size: int, direction: int, y: int, x: int, snake: npt.NDArray[np.int64]
) -> bool:
    """Lays a first paddle from its tail; False where its head or pivot is off the canvas."""
    head_y = _ceil(y, stamps.head[direction, 0])
    head_x = _ceil(x, stamps.head[direction, 1])
    snake[PIVOT_Y] = _ceil(head_y, stamps.back[direction, 0])
    snake[PIVOT_X] = _ceil(head_x, stamps.back[direction, 1])
    snake[POSE], snake[BASE_Y], snake[BASE_X] = direction, y, x
    return _inside(head_y, head_x, size) and _inside(snake[PIVOT_Y], snake[PIVOT_X], size)


@_compiled
def _note(laid: npt.NDArray[np.int64], snake: npt.NDArray[np.int64]) -> None:
    """Notes a snake's newest paddle: pose, base y, base x."""
    laid[0], laid[1], laid[2] = snake[POSE], snake[BASE_Y], snake[BASE_X]


@_compiled
def _occupy(stamps: Stamps, mask: npt.NDArray[np.uint8], snake: npt.NDArray[np.int64]) -> None:
    """Enters a snake's newest paddle into the mask."""
    u = stamps.stamp_of[snake[POSE]]
    _press(mask, stamps.occupied[u], stamps.box[u], snake[BASE_Y], snake[BASE_X])


@_compiled
def _extend(
    rng: npt.NDArray[np.uint64],
    scene: Scene,
    stamps: Stamps,
    mask: npt.NDArray[np.uint8],
    snake: npt.NDArray[np.int64],
    cumulative: npt.NDArray[np.int64],
) -> bool:
    """Grows a snake by a paddle, and only then enters its last one into the mask.

    The draws fall on the candidates by weight × (1 − crowding). False at a dead end, or where no
    draw fits; the mask is then as it was.
    """
    pose = snake[POSE]
    pivot_y = _ceil(snake[PIVOT_Y], stamps.advance[pose, 0])
    pivot_x = _ceil(snake[PIVOT_X], stamps.advance[pose, 1])
    total = 0
    for k in range(stamps.candidates.shape[0]):
        y, x = pivot_y + stamps.candidates[k, 0], pivot_x + stamps.candidates[k, 1]
        weight = stamps.weights[pose, k]
        if weight > 0 and _inside(y, x, scene.resolution):
            total += weight * (255 - _crowding(mask, stamps.disc, y, x))
        cumulative[k] = total
    if total < scene.dead_end:
        return False
    for _ in range(scene.paddle_tries):
        drawn = below(rng, total)
        k = 0
        while cumulative[k] <= drawn:
            k += 1
        y, x = pivot_y + stamps.candidates[k, 0], pivot_x + stamps.candidates[k, 1]
        u = stamps.stamp_of[SEED_POSES + k]
        if _fits(mask, stamps.occupied[u], stamps.box[u], scene.most, y, x):
            _occupy(stamps, mask, snake)
            snake[PIVOT_Y], snake[PIVOT_X] = pivot_y, pivot_x
            snake[POSE], snake[BASE_Y], snake[BASE_X] = SEED_POSES + k, y, x
            return True
    return False


# --- Targets --------------------------------------------------------------------------------------


@_compiled
def _seed_targets(
    rng: npt.NDArray[np.uint64], scene: Scene, stamps: Stamps, snakes: npt.NDArray[np.int64]
) -> bool:
    """Lays the first paddles of both targets: one far from the borders, one near the first."""
    size = scene.resolution
    found = False
    for _ in range(scene.paddle_tries):
        direction = below(rng, SEED_POSES)
        u = stamps.stamp_of[direction]
        if stamps.seeds_nothing[u]:
            return False
        room = stamps.room_box[u]
        border = 2 * scene.seed_distance
        low_y, low_x = max(border - room[0], 0), max(border - room[2], 0)
        rows = min(size - border - room[1], size) - low_y
        columns = min(size - border - room[3], size) - low_x
        if rows <= 0 or columns <= 0:
            return False
        y, x = low_y + below(rng, rows), low_x + below(rng, columns)
        if _start(stamps, size, direction, y, x, snakes[0]):
            found = True
            break
    if not found:
        return False
    for _ in range(scene.paddle_tries):
        direction = below(rng, SEED_POSES)
        place = below(rng, 360)
        y = int(np.rint(snakes[0, BASE_Y] + scene.ring[place, 0]))
        x = int(np.rint(snakes[0, BASE_X] + scene.ring[place, 1]))
        if _start(stamps, size, direction, y, x, snakes[1]):
            return True
    return False


@_compiled
def _grow_targets(
    rng: npt.NDArray[np.uint64],
    scene: Scene,
    stamps: Stamps,
    mask: npt.NDArray[np.uint8],
    snakes: npt.NDArray[np.int64],
    laid: npt.NDArray[np.int64],
    cumulative: npt.NDArray[np.int64],
) -> bool:
    """One attempt at both targets, grown in turns; `laid` [2, contour_length, 3] notes the paddles."""
    if not _seed_targets(rng, scene, stamps, snakes):
        return False
    pad, size = scene.padding, scene.resolution
    mask[:] = 0
    mask[:pad], mask[size - pad :] = 255, 255
    mask[:, :pad], mask[:, size - pad :] = 255, 255
    for s in range(2):
        _note(laid[s, 0], snakes[s])
    for paddle in range(1, scene.contour_length):
        for s in range(2):
            if not _extend(rng, scene, stamps, mask, snakes[s], cumulative):
                return False
            _note(laid[s, paddle], snakes[s])
    _occupy(stamps, mask, snakes[1])  # the last paddle of the first target never enters the mask
    return True


# --- Distractors ----------------------------------------------------------------------------------


@_compiled
def _is_free(mask: npt.NDArray[np.uint8], room: npt.NDArray[np.int64], y: int, x: int) -> bool:
    """Whether nothing is in a first paddle's room; the pixels along the border count as taken."""
    last = mask.shape[0] - 1
    for d in range(room.shape[0]):
        i, j = y + room[d, 0], x + room[d, 1]
        if _inside(i, j, last + 1) and (
            mask[i, j] > FREE or i == 0 or i == last or j == 0 or j == last
        ):
            return False
    return True


@_compiled
def _free_tail(
    rng: npt.NDArray[np.uint64], mask: npt.NDArray[np.uint8], room: npt.NDArray[np.int64]
) -> int:
    """A tail drawn uniformly from the free ones, as y × size + x, or -1 where there is none.

    Blind draws come first, since free ones are many most of the time; a free one among them is as
    uniform as one drawn from the list of all, which follows.
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
def _seed_distractor(
    rng: npt.NDArray[np.uint64],
    scene: Scene,
    stamps: Stamps,
    mask: npt.NDArray[np.uint8],
    snake: npt.NDArray[np.int64],
) -> bool:
    """Lays the first paddle of a distractor, where a hundredth of the canvas is still free."""
    size = scene.resolution
    free = 0
    for y in range(size):
        for x in range(size):
            free += mask[y, x] <= FREE
    if 100 * free < size * size:
        return False
    for _ in range(scene.paddle_tries):
        direction = below(rng, SEED_POSES)
        u = stamps.stamp_of[direction]
        tail = -1 if stamps.seeds_nothing[u] else _free_tail(rng, mask, stamps.room[u])
        if tail < 0:
            return False
        if _start(stamps, size, direction, tail // size, tail % size, snake):
            return True
    return False


@_compiled
def _grow_distractor(
    rng: npt.NDArray[np.uint64],
    scene: Scene,
    stamps: Stamps,
    mask: npt.NDArray[np.uint8],
    snake: npt.NDArray[np.int64],
    laid: npt.NDArray[np.int64],
    cumulative: npt.NDArray[np.int64],
) -> bool:
    """One attempt at a distractor; where it fails, the mask holds a part of it."""
    if not _seed_distractor(rng, scene, stamps, mask, snake):
        return False
    _note(laid[0], snake)
    for paddle in range(1, scene.distractor_length):
        if not _extend(rng, scene, stamps, mask, snake, cumulative):
            return False
        _note(laid[paddle], snake)
    _occupy(stamps, mask, snake)
    return True


# --- Pictures -------------------------------------------------------------------------------------


@_compiled
def _paint(
    canvas: npt.NDArray[np.float64],
    stamps: Stamps,
    brightness: npt.NDArray[np.float64],
    laid: npt.NDArray[np.int64],
) -> None:
    """Draws paddles, each where it is brighter than what is there."""
    for paddle in range(laid.shape[0]):
        u = stamps.stamp_of[laid[paddle, 0]]
        _press(canvas, brightness[u], stamps.box[u], laid[paddle, 1], laid[paddle, 2])


@_compiled
def _mark(canvas: npt.NDArray[np.float64], scene: Scene, y: int, x: int) -> None:
    """Draws a marker; near a border its stamp is the one of a canvas with a border as near."""
    size, side = scene.resolution, scene.marker.shape[0]
    row = y if y < side // 2 else max(side // 2, y - size + side)
    column = x if x < side // 2 else max(side // 2, x - size + side)
    for i in range(side):
        for j in range(side):
            here = y - row + i, x - column + j
            canvas[here] = max(canvas[here], scene.marker[row, column, i, j])


@_compiled
def _expose(canvas: npt.NDArray[np.float64], image: npt.NDArray[np.uint8]) -> None:
    """Stretches a canvas to the bytes 0 to 255, rounded half up."""
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
    key: npt.NDArray[np.uint64],
    start: int,
    out: Out,
) -> None:
    """Draws the images `start`, `start + 1`, ... until `out` is full."""
    size = scene.resolution
    rng = np.empty(4, np.uint64)
    mask = np.empty((size, size), np.uint8)
    attempt = np.empty((size, size), np.uint8)
    canvas = np.empty((size, size), np.float64)
    snakes = np.empty((2, 5), np.int64)
    targets = np.empty((2, scene.contour_length, 3), np.int64)
    distractor = np.empty((scene.distractor_length, 3), np.int64)
    cumulative = np.empty(1024, np.int64)
    for n in range(out.labels.shape[0]):
        seed_stream(rng, key, start + n)
        label = below(rng, 2)
        stamps = stamps_of_margins[below(rng, scene.num_margins)]

        restarts = 0
        while not _grow_targets(rng, scene, stamps, mask, snakes, targets, cumulative):
            restarts += 1
        canvas[:] = 0
        for s in range(2):
            _paint(canvas, stamps, stamps.target, targets[s])
            _copy(targets[s], out.targets[n, s])

        num_distractors = 0
        for _ in range(scene.num_distractors):
            for _ in range(scene.distractor_tries):
                _copy(mask, attempt)
                if _grow_distractor(rng, scene, stamps, attempt, snakes[0], distractor, cumulative):
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
