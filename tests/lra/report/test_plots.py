"""Figures of few and of many groups."""

import struct

import numpy as np
import pytest

from lra.report import plots
from lra.report.groups import labels_of
from reporting import plotting
from tests.lra.report.runs import groups_in, write_run, write_seeds, write_speed

BASELINES = {"constant answer": 0.176, "first token alone": 0.359}


def size_of(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def attention(landmarks):
    return {"name": "nystrom", "num_landmarks": landmarks}


def draw(groups, path):
    plots.plot_curves(groups, BASELINES, plotting.colors_of(labels_of(groups)), path)
    return size_of(path)


@pytest.mark.parametrize("count", [1, 7, 12])
@pytest.mark.slow_except("1", "7")
def test_curves_are_drawn_for_any_number_of_groups(tmp_path, count):
    for number in range(count):
        write_seeds(tmp_path / "runs" / str(number), [0.3, 0.4], attention=attention(8 + number))
    width, height = draw(groups_in(tmp_path / "runs"), tmp_path / "curves.png")
    assert width > 1000
    assert height > 400


def test_more_groups_than_colors_are_drawn_in_several_panels(tmp_path):
    widths = []
    for number in range(len(plotting.COLORS) + 1):
        write_run(tmp_path / "runs" / str(number), attention=attention(8 + number))
        if number >= len(plotting.COLORS) - 1:
            widths.append(draw(groups_in(tmp_path / "runs"), tmp_path / "curves.png")[0])
    assert widths == [1100, 1188]  # two axes side by side; four panels


def test_a_run_without_metrics_is_drawn(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").write_text("")
    assert draw(groups_in(tmp_path / "run"), tmp_path / "curves.png")


def test_line_is_the_mean_over_seeds_inside_their_range(tmp_path):
    for seed, level in enumerate((0.2, 0.5)):
        folder = write_run(tmp_path / str(seed), seed=seed)
        lines = [f'{{"step": {step}, "valid/accuracy": {level * step}}}' for step in (1, 2)]
        (folder / "metrics.jsonl").write_text("\n".join(lines))
    write_run(tmp_path / "unfinished", seed=2, finished=False)  # leaves no kink in the line
    (group,) = groups_in(tmp_path)
    steps, means, lows, highs = plots.over_seeds(group, "valid/accuracy", 100)
    assert steps == [1, 2]
    assert means == pytest.approx([35, 70])
    assert lows == pytest.approx([20, 40])
    assert highs == pytest.approx([50, 100])


def test_a_long_training_curve_is_averaged_by_intervals(tmp_path):
    write_run(tmp_path / "run", steps=range(1, 1001))
    (group,) = groups_in(tmp_path)
    steps, means, _, _ = plots.over_seeds(group, "train/accuracy", 100)
    assert len(steps) == len(means) <= plots.MAX_POINTS
    assert steps[-1] == 1000
    assert means == pytest.approx([20] * len(means))


def test_speed_plot_needs_two_settings_of_one_task_budget_and_device(tmp_path):
    write_run(tmp_path / "a", accuracy=0.36)
    assert plots.tradeoffs(groups_in(tmp_path)) == []
    write_run(tmp_path / "b", attention=attention(32), partial=True)
    write_run(tmp_path / "c", attention=attention(16), task="text")
    write_run(
        tmp_path / "d", attention=attention(8), result={"device": {"kind": "gpu", "count": 1}}
    )
    write_run(tmp_path / "e", attention=attention(4), result={"step_seconds": None})
    assert plots.tradeoffs(groups_in(tmp_path)) == []
    write_run(tmp_path / "f", attention={"name": "softmax"})
    (panel,) = plots.tradeoffs(groups_in(tmp_path))
    assert {group.label for group in panel} == {"nystrom-64", "softmax"}


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.slow_except("12")
def test_speed_is_drawn_with_and_without_memory(tmp_path, count):
    for number in range(count):
        result = {"step_seconds": 3.2 / (number + 1)}
        result["peak_bytes"] = None if number % 2 else (number + 1) * 2**30
        write_run(tmp_path / "runs" / str(number), attention=attention(8 + number), result=result)
    groups = groups_in(tmp_path / "runs")
    plots.plot_tradeoff(groups, plotting.colors_of(labels_of(groups)), tmp_path / "speed.png")
    assert size_of(tmp_path / "speed.png")[0] > 600


def draw_times(folder):
    groups = groups_in(folder / "runs")
    colors = plotting.colors_of(labels_of(groups))
    return plots.plot_times(groups, BASELINES, colors, folder / "time.png")


def test_accuracy_is_drawn_over_the_minutes_of_each_group(tmp_path, drawn_figures):
    write_seeds(tmp_path / "runs" / "a", [0.3, 0.4], step_seconds=6)
    write_run(tmp_path / "runs" / "b", attention=attention(8), step_seconds=12)
    write_run(tmp_path / "runs" / "old", attention=attention(16))
    assert draw_times(tmp_path)
    (figure,) = drawn_figures
    (axes,) = figure.axes
    names = axes.get_legend_handles_labels()[1]
    assert names == ["nystrom-64", "nystrom-8", "constant answer", "first token alone"]
    lines = axes.get_lines()
    assert lines[0].get_xydata() == pytest.approx(np.array([[1, 25], [2, 25]]))
    assert lines[1].get_xydata() == pytest.approx(np.array([[2, 25], [4, 25]]))
    assert axes.get_xscale() == "linear"
    assert figure.get_suptitle() == "ListOps, on 1 × cpu, 2 threads"


def test_time_of_a_group_is_the_mean_of_its_timed_seeds(tmp_path):
    write_run(tmp_path / "a", seed=0, step_seconds=6)
    write_run(tmp_path / "b", seed=1, step_seconds=18)
    write_run(tmp_path / "unfinished", seed=3, finished=False, step_seconds=600)
    folder = write_run(tmp_path / "c", seed=2)
    lines = (folder / "metrics.jsonl").read_text().replace("0.25", "0.75")
    (folder / "metrics.jsonl").write_text(lines)
    (group,) = groups_in(tmp_path)
    minutes, curve = plots.over_time(group)
    assert minutes == pytest.approx([2, 4])
    assert curve.means == pytest.approx([25, 25])  # the third has no times and is ignored


def test_widely_different_times_have_a_logarithmic_axis(tmp_path, drawn_figures):
    for number, seconds in enumerate((1, 9.9, 10.1)):
        place = tmp_path / "runs" / str(number)
        write_run(place, attention=attention(8 + number), step_seconds=seconds)
        draw_times(tmp_path)
    assert [figure.axes[0].get_xscale() for figure in drawn_figures] == ["linear", "linear", "log"]


def test_labels_contain_devices_if_they_differ(tmp_path, drawn_figures):
    write_run(tmp_path / "runs" / "a", step_seconds=6)
    gpu = {"device": {"kind": "gpu", "count": 1}, "cpu_threads": None}
    write_run(tmp_path / "runs" / "b", attention=attention(8), step_seconds=6, result=gpu)
    draw_times(tmp_path)
    names = drawn_figures[0].axes[0].get_legend_handles_labels()[1]
    assert names[:2] == ["nystrom-8, on 1 × gpu", "nystrom-64, on 1 × cpu, 2 threads"]
    assert drawn_figures[0].get_suptitle() == "ListOps"


def test_runs_without_times_are_not_drawn(tmp_path):
    write_run(tmp_path / "runs" / "a")
    write_speed(write_run(tmp_path / "runs" / "b", seed=4), [])
    assert not draw_times(tmp_path)
    assert not (tmp_path / "time.png").exists()


@pytest.mark.parametrize("length", [1, 12, 40])
@pytest.mark.slow_except("40")
def test_legend_of_many_long_labels_is_inside_the_figure(tmp_path, drawn_figures, length):
    names = [f"option_{number}" for number in range(length)]
    for number in range(9):
        values = {"name": "new", **dict.fromkeys(names, number)}
        write_run(tmp_path / "runs" / str(number), attention=values, step_seconds=1)
    draw_times(tmp_path)
    (figure,) = drawn_figures
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.contains(legend.x0, legend.y0)
    assert figure.bbox.contains(legend.x1, legend.y1)
    assert figure.axes[0].get_window_extent().y0 > legend.y1
    assert figure.axes[0].get_window_extent().height > 250
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].get_lines()[:9]}
    assert len(styles) == 9
