"""Speed is the median over laps, then over seeds. Unsteady times are marked."""

import itertools
import math

import pytest
from matplotlib.collections import PathCollection

from lra.report import plots
from lra.report.numbers import numbers
from lra.report.page import make
from lra.report.tables import runs_table, task_groups_table
from reporting.plotting import colors_of
from tests.lra.report.runs import groups_in, write_run, write_speed

SPEED = slice(6, 8)  # the columns "s per step" and "examples per second"


def write(folder, seed=0, laps=(), **values):
    run = write_run(folder, seed=seed, config={"train": {"seed": seed, "batch_size": 32}}, **values)
    if laps:
        write_speed(run, [(10 * number, seconds) for number, seconds in enumerate(laps, 1)])
    return run


def speed_of(folder):
    ((cells,),) = (rows for _, rows in task_groups_table(groups_in(folder)).sections[:1])
    return cells[SPEED]


def test_speed_is_the_median_over_laps_then_over_seeds(tmp_path):
    write(tmp_path / "a", 0, laps=[0.25, 0.2, 9.0])
    write(tmp_path / "b", 1, laps=[0.2, 0.2, 5.0, 0.2])
    write(tmp_path / "c", 2, laps=[0.28, 0.28, 0.28])
    (group,) = groups_in(tmp_path)
    assert group.step_seconds == 0.25
    assert group.examples_per_second == 32 / 0.25  # of the same median, so that the two agree
    assert group.step_seconds_range == (0.2, 0.28)
    assert group.is_steady
    assert speed_of(tmp_path) == ["0.250 (0.200–0.280)", "128"]
    assert [row[6] for row in runs_table([group]).sections[0][1]] == ["0.250", "0.200", "0.280"]


def test_seeds_that_differ_by_more_than_half_are_marked(tmp_path):
    write(tmp_path / "a", 0, laps=[0.2])
    write(tmp_path / "b", 1, laps=[0.3])
    assert speed_of(tmp_path) == ["0.250 (0.200–0.300)", "128"]
    write(tmp_path / "c", 2, laps=[0.301])
    assert speed_of(tmp_path) == ["0.300 (0.200–0.301) †", "107 †"]
    (group,) = groups_in(tmp_path)
    assert "\n† Over seeds" in make([group], [], tmp_path / "report")[0]
    cell = numbers([group])["tasks"]["listops"]["settings"][0]
    assert (cell["step_seconds_range"], cell["speed_is_steady"]) == ([0.2, 0.301], False)


def test_one_seed_is_marked_if_its_quartiles_differ(tmp_path):
    write(tmp_path / "a", laps=[0.2, 0.2, 0.2, 0.9])
    assert speed_of(tmp_path) == ["0.200 (0.200–0.375) †", "160 †"]


def test_seeds_are_marked_if_the_quartiles_of_each_differ(tmp_path):
    """As with a curriculum, whose sequences are shorter, however equal the medians are."""
    write(tmp_path / "a", 0, laps=[0.1, 0.1, 0.3, 0.3])
    write(tmp_path / "b", 1, laps=[0.1, 0.1, 0.3, 0.34])
    assert speed_of(tmp_path) == ["0.200 (0.100–0.300) †", "160 †"]
    write(tmp_path / "c", 2, laps=[0.2, 0.2, 0.22, 0.24])  # one steady run is enough
    assert speed_of(tmp_path) == ["0.200 (0.200–0.225)", "160"]


def test_a_run_without_laps_uses_its_result(tmp_path):
    write_run(tmp_path / "a")
    assert speed_of(tmp_path) == ["0.976", "32.8"]


def test_speed_plot_omits_unsteady_times(tmp_path):
    for number, laps in enumerate(([0.2, 0.2, 0.2], [0.4, 0.4, 0.4], [0.1, 0.4, 0.9])):
        attention = {"name": "nystrom", "num_landmarks": 8 << number}
        write(tmp_path / str(number), laps=laps, attention=attention)
    groups = groups_in(tmp_path)
    (panel,) = plots.tradeoffs(groups)
    assert {group.label for group in panel} == {"nystrom-8", "nystrom-16"}
    section = make(groups, [], tmp_path / "report")[0].split("\n## ")[2]
    assert section.startswith("Accuracy and speed\n")
    points = [line for line in section.splitlines() if line.startswith("* ")]
    assert points == ["* ListOps, nystrom-32: 0.250 to 0.650 s per step."]


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("count", [3, 12])
def test_titles_and_discs_of_the_speed_plot_do_not_overlap(tmp_path, count, drawn_figures):
    steps = {"steps": (10, 1000), "partial": True}
    for number in range(count):
        attention = {"name": "nystrom", "num_landmarks": 8 + number}
        laps = [0.2 + number / 100] * 3
        write(tmp_path / f"p{number}", laps=laps, attention=attention, accuracy=0.36, **steps)
        attention = {"name": "nystrom", "num_landmarks": 8 + number}
        write(
            tmp_path / f"w{number}", laps=laps, attention=attention, accuracy=0.36 + number / 1000
        )
    groups = groups_in(tmp_path)
    labels = list(dict.fromkeys(group.label for group in groups))
    plots.plot_tradeoff(groups, colors_of(labels), tmp_path / "speed.png")
    (figure,) = drawn_figures
    for axes in figure.axes:
        box = axes.title.get_window_extent()
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
    for axes in figure.axes:
        discs = [disc for disc in axes.collections if isinstance(disc, PathCollection)]
        assert len(discs) == count
        centres = [axes.transData.transform(disc.get_offsets()[0]) for disc in discs]
        radii = [disc.get_sizes()[0] ** 0.5 / 2 * figure.dpi / 72 for disc in discs]
        assert min(radii) > 3
        for one, other in itertools.combinations(range(count), 2):
            distance = math.dist(centres[one], centres[other])
            assert distance > 0.95 * (radii[one] + radii[other])
