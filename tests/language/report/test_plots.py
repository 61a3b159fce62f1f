"""Figure 5 has a line for each model and a band over seeds."""

import numpy as np
import pytest

from language.report.plots import PANELS, plot_pretraining
from tests.language.report.runs import groups_in, write_pretraining


def size_of(path):
    """Width and height from a PNG's own header."""
    header = path.read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


@pytest.fixture
def groups(tmp_path):
    for seed, accuracy in enumerate((0.30, 0.36)):
        write_pretraining(tmp_path / "runs" / f"{seed}", seed=seed, accuracy=accuracy)
    write_pretraining(tmp_path / "runs" / "softmax", attention="softmax")
    return groups_in(tmp_path / "runs")


def test_figure_has_a_panel_per_metric_and_room_for_its_legend(groups, tmp_path):
    plot_pretraining(groups, {"mlm_accuracy": 0.05}, tmp_path / "few.png")
    width, height = size_of(tmp_path / "few.png")
    assert width > len(PANELS) * 300
    for number in range(9):
        write_pretraining(
            tmp_path / "more" / f"{number}", config={"attention": {"num_landmarks": number + 1}}
        )
    plot_pretraining(groups_in(tmp_path / "more"), {}, tmp_path / "many.png")
    assert size_of(tmp_path / "many.png")[1] > height


def test_each_panel_has_the_lines_of_its_metric_and_bands_where_seeds_differ(
    groups, tmp_path, drawn_figures
):
    plot_pretraining(groups, {"mlm_accuracy": 0.05}, tmp_path / "figure.png")
    (figure,) = drawn_figures
    assert [axes.get_ylabel() for axes in figure.axes] == [title for title, _ in PANELS.values()]
    # The values of `write_pretraining` at 100, 200 and 300 steps: the mean of two seeds, and softmax.
    assert [group.label for group in groups] == ["nystrom-64", "softmax"]
    expected = [
        ([11, 22, 33], [10, 20, 30]),
        ([6.95, 5.95, 4.95], [6.7, 5.7, 4.7]),
        ([50 + 20 / 3, 50 + 40 / 3, 70],) * 2,
    ]
    bands = []
    for axes, values in zip(figure.axes, expected, strict=True):
        lines = axes.get_lines()
        for line, own in zip(lines[:2], values, strict=True):
            np.testing.assert_allclose(line.get_xydata().T, [[100, 200, 300], own])
        bands.append(len(axes.collections))
        baselines = [list(line.get_ydata()) for line in lines[2:]]
        assert baselines == ([[5, 5]] if axes is figure.axes[0] else [])
    assert bands == [1, 1, 0]


def test_a_run_without_a_log_has_no_line(tmp_path, drawn_figures):
    (write_pretraining(tmp_path / "runs" / "a") / "metrics.jsonl").unlink()
    plot_pretraining(groups_in(tmp_path / "runs"), {}, tmp_path / "empty.png")
    (figure,) = drawn_figures
    assert not any(axes.get_lines() for axes in figure.axes)
    assert not figure.legends
