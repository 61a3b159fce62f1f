import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lra.data import pathfinder_generator, pathfinder_kernels
from lra.data.pathfinder_generator import DIFFICULTIES, RESOLUTIONS, draw, generate, parameters
from tests import programs

# drewlinsley/pathfinder at ab9c130, hard, at the four resolutions: (mean of an image's
# value, standard error) of 4,897, 64, 111, 1,456 images. Rows "0" to "201-255" are shares of pixels
# with such values, "pixel" is their mean.
ORIGINAL = {
    "0": ((0.6592, 0.00054), (0.7367, 0.0035), (0.8625, 0.00056), (0.9612, 2.7e-05)),
    "1-16": ((0.1836, 0.00033), (0.1437, 0.0021), (0.07749, 0.00039), (0.02077, 2.2e-05)),
    "17-64": ((0.03168, 9.3e-05), (0.0293, 0.00043), (0.01947, 0.00016), (0.003915, 6.1e-06)),
    "65-128": ((0.04076, 0.00013), (0.04305, 0.00077), (0.01023, 0.0001), (0.003062, 5.3e-06)),
    "129-200": ((0.06878, 9.3e-05), (0.03756, 0.00071), (0.01665, 9.8e-05), (0.003392, 6.9e-06)),
    "201-255": ((0.01595, 6.5e-05), (0.009697, 0.00013), (0.01362, 0.00011), (0.007667, 4.5e-06)),
    "pixel": ((20.15, 0.028), (13.63, 0.17), (7.902, 0.033), (2.949, 0.0014)),
    "labels": ((0.5056, 0.0071), (0.5625, 0.062), (0.5586, 0.047), (0.5096, 0.013)),
    "marker_distance": ((12.93, 0.074), (31.69, 1.3), (76.79, 1.8), (124.4, 0.6)),
    "num_distractors": ((1.136, 0.013), (2.75, 0.15), (7.667, 0.053), (6.99, 0.0028)),
    "restarts": ((319.5, 4.5), (3759, 5.2e02), (366.5, 46), (6.977, 0.2)),
}

NUM_IMAGES = (1_511, 89, 127, 401)
BINS = {"0": (0, 0), "1-16": (1, 16), "17-64": (17, 64), "65-128": (65, 128)}
BINS |= {"129-200": (129, 200), "201-255": (201, 255)}


def sha256(arrays):
    content = hashlib.sha256()
    for array in arrays:
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


# --- Parameters and errors


def test_difficulty_is_the_length_of_the_paths():
    """Paddles of a target and of a distractor, and the number of distractors; from easy to hard."""
    for resolution, expected in {
        32: [(6, 2, 10), (9, 3, 6), (14, 4, 5)],
        64: [(6, 2, 11), (9, 3, 7), (14, 4, 5)],
        128: [(6, 2, 17), (9, 3, 11), (14, 4, 8)],
        256: [(6, 2, 15), (9, 3, 10), (14, 4, 7)],
    }.items():
        chosen = [parameters(resolution, difficulty) for difficulty in DIFFICULTIES]
        assert [dataclasses.astuple(one)[10:13] for one in chosen] == expected


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((31, "hard", 0, 1), "31"),
        ((32, "baseline", 0, 1), "'baseline'"),
        ((32, "hard", -1, 1), "start"),
        ((32, "hard", 5, 3), "start"),
    ],
)
def test_rejects_invalid_parameters(arguments, word):
    resolution, difficulty, start, stop = arguments
    with pytest.raises(ValueError, match=word):
        generate(resolution, difficulty, seed=0, start=start, stop=stop)


# --- Streams


@pytest.mark.parametrize(("resolution", "difficulty"), [(32, "hard"), (256, "intermediate")])
def test_an_image_does_not_depend_on_the_others(resolution, difficulty):
    whole = generate(resolution, difficulty, seed=3, start=0, stop=7)
    assert (whole.images.dtype, whole.labels.dtype) == (np.uint8, np.int32)
    for start, stop in [(0, 1), (2, 7), (3, 3)]:
        part = generate(resolution, difficulty, seed=3, start=start, stop=stop)
        for ours, all_of_them in zip(part, whole, strict=True):
            np.testing.assert_array_equal(ours, all_of_them[start:stop])


def test_images_differ_between_numbers_seeds_and_difficulties():
    streams = [
        generate(32, difficulty, seed=seed, start=0, stop=101).images
        for seed in (0, 1, -1, 2**64)
        for difficulty in DIFFICULTIES
    ]
    assert len({image.tobytes() for stream in streams for image in stream}) == 12 * 101


def test_images_never_change():
    """Golden: another hash means other data than those of the stored results."""
    hashes = {}
    for resolution in RESOLUTIONS:
        drawn = generate(resolution, "hard", seed=0, start=0, stop=7)
        hashes[resolution] = sha256([drawn.images, drawn.labels])[:16]
    assert hashes == {
        32: "d612b58b3f9acdc8",
        64: "68397a0f701a94ac",
        128: "f32743ab8be11bb7",
        256: "4908ede3effd515c",
    }


def test_random_words_equal_those_of_xoshiro():
    """The first outputs from the state 1, 2, 3, 4, as in Rust's rand_xoshiro."""
    state = np.array([1, 2, 3, 4], np.uint64)
    words = [int(pathfinder_kernels.next_word(state)) for _ in range(5)]
    assert words == [11520, 0, 1509978240, 1215971899390074240, 1216172134540287360]


# --- Distribution


@pytest.mark.slow_except("32")
@pytest.mark.parametrize("column", range(4), ids=map(str, RESOLUTIONS))
def test_images_have_the_distribution_of_the_originals(column):
    """Every statistic is within four standard errors of the difference."""
    num_images = NUM_IMAGES[column]
    drawn = generate(RESOLUTIONS[column], "hard", seed=11, start=0, stop=num_images)
    statistics = {name: getattr(drawn, name) for name in ORIGINAL if hasattr(drawn, name)}
    statistics["pixel"] = drawn.images.mean((1, 2))
    for name, (low, high) in BINS.items():
        statistics[name] = ((drawn.images >= low) & (drawn.images <= high)).mean((1, 2))
    for name, originals in ORIGINAL.items():
        original, original_error = originals[column]
        error = math.hypot(original_error, statistics[name].std() / math.sqrt(num_images))
        assert abs(statistics[name].mean() - original) < 4 * error, name
    assert (drawn.images.min((1, 2)) == 0).all()
    assert (drawn.images.max((1, 2)) == 255).all()


# --- Geometry: the rules of the original, applied to whole canvases


def stretched(canvas):
    """Bytes 0 to 255, as scipy.misc made them before it resized or saved an image."""
    if canvas.dtype == np.uint8:
        return canvas
    least, greatest = canvas.min(), canvas.max()
    return ((canvas - least) * (255 / (greatest - least)) + 0.5).astype(np.uint8)


def resized(canvas, side):
    image = Image.fromarray(stretched(canvas))
    return np.array(image.resize((side, side), Image.Resampling.LANCZOS)) / 255


def disc(radius):
    return [
        (y, x)
        for y, x in itertools.product(range(-radius, radius + 1), repeat=2)
        if y * y + x * x <= radius * radius
    ]


def dilated(canvas, offsets):
    """The largest value over the offsets; -inf where all of them are outside."""
    reach = max(max(abs(y), abs(x)) for y, x in offsets)
    padded = np.pad(canvas.astype(float), reach, constant_values=-np.inf)
    height, width = canvas.shape
    return np.max([padded[reach + y :, reach + x :][:height, :width] for y, x in offsets], axis=0)


def moved(place, direction, distance):
    return [
        math.ceil(place[0] + distance * math.sin(direction)),
        math.ceil(place[1] + distance * math.cos(direction)),
    ]


def reversed_direction(direction):
    return direction + math.pi if direction < 0 else direction - math.pi


class Referee:
    """Lays paddles on whole canvases with Pillow, and asserts that each one was allowed."""

    def __init__(self, chosen):
        self.p = chosen
        (self.margin,) = chosen.margins
        self.radius = chosen.paddle_length + self.margin
        steps = np.arange(0, 360, 360 / (2 * self.radius * np.pi)) * np.pi / 180
        circle = 1_000 + self.radius * np.stack([np.sin(steps), np.cos(steps)], 1)
        self.candidates = np.unique(circle.astype(int), axis=0) - 1_000
        self.mask = self.frame(chosen.padding)
        self.picture = np.zeros_like(self.mask)

    def frame(self, width):
        canvas = np.ones((self.p.resolution, self.p.resolution))
        canvas[width : self.p.resolution - width, width : self.p.resolution - width] = 0
        return canvas

    def rendered(self, place, direction, side=None, contrast=1.0):
        """Brightness and occupancy of one paddle on an empty canvas."""
        p, side = self.p, side or self.p.resolution
        reach = p.paddle_length + math.ceil(p.paddle_thickness) + self.margin
        middle = 2 * reach
        end = moved([middle, middle], direction, 2 * p.paddle_length)
        fine = Image.new("F", (2 * middle + 1, 2 * middle + 1), "black")
        ImageDraw.Draw(fine).line(
            [(middle, middle), (end[1], end[0])], fill="white", width=int(2 * p.paddle_thickness)
        )
        line = resized(np.array(fine), 2 * reach + 1) * contrast
        grown = dilated(np.array(fine), disc(2 * self.margin)).astype(np.uint8)
        padded = np.zeros((2, side + 4 * reach, side + 4 * reach), np.float32)
        y, x = place[0] + reach, place[1] + reach
        padded[:, y : y + 2 * reach + 1, x : x + 2 * reach + 1] = [
            line,
            resized(grown, 2 * reach + 1),
        ]
        return padded[:, 2 * reach :, 2 * reach :][:, :side, :side].astype(float)

    def free(self, lined, direction):
        """Returns the allowed positions of the first paddle's tail."""
        side = 2 * self.radius + 1
        _, shape = self.rendered([self.radius + 1] * 2, direction, side)
        room = dilated(lined, np.argwhere(shape.astype(np.uint8)) - self.radius)
        return room <= 0.3 if room.min() >= 0 else np.zeros_like(room, bool)

    def seed(self, pose, place, contrast):
        direction = (pose - 180) * np.pi / 180
        head = moved(place, direction, self.p.paddle_length)
        pivot = moved(head, reversed_direction(direction), self.radius)
        assert min(head + pivot) >= 0
        assert max(head + pivot) < self.p.resolution
        line, occupied = self.rendered(place, direction, contrast=contrast)
        self.picture = np.maximum(self.picture, line)
        return pivot, direction, occupied

    def extend(self, snake, pose, place, contrast):
        pivot, direction, newest = snake
        pivot = moved(pivot, direction, self.p.paddle_length + 2 * self.margin)
        y, x = self.candidates[pose - 360]
        assert [pivot[0] + y, pivot[1] + x] == list(place)
        after = math.atan2(y, x)
        turn = min(abs(after - direction), 2 * np.pi - abs(after - direction))
        assert turn * self.p.continuity < np.pi / 2
        assert dilated(self.mask, disc(self.margin))[tuple(place)] < 1
        line, occupied = self.rendered(place, reversed_direction(after), contrast=contrast)
        assert (self.mask + occupied).max() < 1.8
        self.picture = np.maximum(self.picture, line)
        self.mask = np.maximum(self.mask, newest)
        return pivot, after, occupied

    def targets(self, targets):
        (pose, *tail), (other_pose, *other_tail) = targets[:, 0].tolist()
        lined = np.maximum(self.mask, self.frame(2 * self.p.seed_distance))
        assert self.free(lined, (pose - 180) * np.pi / 180)[tuple(tail)]
        assert abs(math.dist(tail, other_tail) - self.p.seed_distance) < 1
        contrast = self.p.target_contrast
        snakes = [self.seed(pose, tail, contrast), self.seed(other_pose, other_tail, contrast)]
        for paddle in range(1, self.p.contour_length):
            for s in range(2):
                pose, *head = targets[s, paddle].tolist()
                snakes[s] = self.extend(snakes[s], pose, head, contrast)
        self.mask = np.maximum(self.mask, snakes[1][2])

    def distractor(self, paddles):
        (pose, *tail), *others = paddles.tolist()
        assert (self.mask <= 0.3).mean() >= 0.01
        lined = np.maximum(self.mask, self.frame(1))
        assert self.free(lined, (pose - 180) * np.pi / 180)[tuple(tail)]
        snake = self.seed(pose, tail, self.p.distractor_contrast)
        for pose, *head in others:
            snake = self.extend(snake, pose, head, self.p.distractor_contrast)
        self.mask = np.maximum(self.mask, snake[2])

    def image(self, *markers):
        for y, x in markers:
            fine = np.arange(2 * self.p.resolution)
            distance = (fine[:, None] - 2 * y) ** 2 + (fine[None] - 2 * x) ** 2
            marker = (distance <= (2 * self.p.marker_radius) ** 2).astype(float)
            self.picture = np.maximum(self.picture, resized(marker, self.p.resolution))
        return stretched(self.picture)


@pytest.mark.slow_except("32-hard-1", "32-easy-1", "64-intermediate-1", "128-hard-2")
@pytest.mark.parametrize(
    ("resolution", "difficulty", "margin"),
    [
        (32, "hard", 1),
        (32, "easy", 1),
        (64, "intermediate", 1),
        (128, "hard", 2),
        (128, "hard", 3),
        (256, "hard", 3),
    ],
)
def test_images_follow_the_rules_of_the_original(resolution, difficulty, margin):
    """All pixels are equal, every choice was allowed, and the markers agree with the label."""
    chosen = dataclasses.replace(parameters(resolution, difficulty), margins=(margin,))
    drawn = draw(chosen, seed=17, start=0, stop=5)
    assert set(drawn.labels.tolist()) == {0, 1}, "choose another seed"
    for n, label in enumerate(drawn.labels):
        referee = Referee(chosen)
        referee.targets(drawn.targets[n])
        for distractor in drawn.distractors[n, : drawn.num_distractors[n]]:
            referee.distractor(distractor)
        first, second = drawn.marked[n]
        assert (first == second) == (label == 1)
        origin = drawn.targets[n, first, 0, 1:].tolist()
        end = drawn.targets[n, second, -1, 1:].tolist()
        np.testing.assert_array_equal(referee.image(origin, end), drawn.images[n])
        assert drawn.marker_distance[n] == pytest.approx(math.dist(origin, end))
        bases = drawn.targets[n, first, :, 1:].tolist()
        length = sum(itertools.starmap(math.dist, itertools.pairwise(bases)))
        assert drawn.path_length[n] == pytest.approx(length)


@pytest.mark.parametrize("resolution", RESOLUTIONS)
def test_markers_equal_those_drawn_by_pillow(resolution):
    chosen = parameters(resolution, "hard")
    scene, _ = pathfinder_generator._tables(chosen)
    near = [*range(13), resolution // 2, resolution // 2 + 1, *range(resolution - 13, resolution)]
    places = itertools.product(near, near)
    for y, x in itertools.islice(places, resolution % 7, None, resolution // 8 - 1):
        ours = np.zeros((resolution, resolution))
        pathfinder_kernels._mark(ours, scene, y, x)
        whole = pathfinder_generator.marker_image(resolution, y, x, chosen.marker_radius)
        np.testing.assert_array_equal(ours, whole / 255)


# --- Numba


@pytest.mark.slow(minutes=0.1)
def test_works_without_a_writable_cache_folder():
    script = (
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from lra.data import pathfinder_kernels\n"
        "print(pathfinder_kernels.next_word(np.array([1, 2, 3, 4], np.uint64)))"
    )
    assert programs.finish(programs.start("-c", script)).output == "11520\n"
