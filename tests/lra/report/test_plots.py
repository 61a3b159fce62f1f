"""Pictures are drawn for few groups and for many, and show what the runs did."""

import struct

import pytest

from harness import figures
from lra.report import plots
from lra.report.groups import labels_of
from tests.lra.report.runs import groups_in, write_run, write_seeds

BASELINES = {"constant answer": 0.176, "first token alone": 0.359}


def size_of(path):
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def attention(landmarks):
    return {"name": "nystrom", "num_landmarks": landmarks}


def draw(groups, path):
    plots.plot_curves(groups, BASELINES, figures.colors_of(labels_of(groups)), path)
    return size_of(path)


@pytest.mark.parametrize("count", [1, 7, 12])
def test_curves_are_drawn_for_any_number_of_groups(tmp_path, count):
    for number in range(count):
        write_seeds(tmp_path / "runs" / str(number), [0.3, 0.4], attention=attention(8 + number))
    width, height = draw(groups_in(tmp_path / "runs"), tmp_path / "curves.png")
    assert width > 1000
    assert height > 400


def test_more_groups_than_colours_get_panels_of_their_own(tmp_path):
    widths = []
    for number in range(len(figures.COLORS) + 1):
        write_run(tmp_path / "runs" / str(number), attention=attention(8 + number))
        if number >= len(figures.COLORS) - 1:
            widths.append(draw(groups_in(tmp_path / "runs"), tmp_path / "curves.png")[0])
    assert widths == [1100, 1188]  # two axes side by side; four panels


def test_a_run_without_a_point_is_drawn(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").write_text("")
    assert draw(groups_in(tmp_path / "run"), tmp_path / "curves.png")


def test_the_line_is_the_mean_over_seeds_inside_their_band(tmp_path):
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


def test_a_long_training_curve_is_averaged_in_pieces(tmp_path):
    write_run(tmp_path / "run", steps=range(1, 1001))
    (group,) = groups_in(tmp_path)
    steps, means, _, _ = plots.over_seeds(group, "train/accuracy", 100)
    assert len(steps) == len(means) <= plots.MAX_POINTS
    assert steps[-1] == 1000
    assert means == pytest.approx([20] * len(means))


def test_speed_needs_two_settings_of_one_task_budget_and_device(tmp_path):
    write_run(tmp_path / "a", accuracy=0.36)
    assert plots.tradeoffs(groups_in(tmp_path)) == []
    write_run(tmp_path / "b", attention=attention(32), partial=True)
    write_run(tmp_path / "c", attention=attention(16), task="text")
    write_run(
        tmp_path / "d", attention=attention(8), result={"device": {"kind": "gpu", "count": 1}}
    )
    write_run(tmp_path / "e", attention=attention(4), result={"examples_per_second": None})
    assert plots.tradeoffs(groups_in(tmp_path)) == []
    write_run(tmp_path / "f", attention={"name": "softmax"})
    (panel,) = plots.tradeoffs(groups_in(tmp_path))
    assert {group.label for group in panel} == {"nystrom-64", "softmax"}


@pytest.mark.parametrize("count", [2, 12])
def test_speed_is_drawn_with_and_without_memory(tmp_path, count):
    for number in range(count):
        result = {"examples_per_second": 10.0 * (number + 1)}
        result["peak_bytes"] = None if number % 2 else (number + 1) * 2**30
        write_run(tmp_path / "runs" / str(number), attention=attention(8 + number), result=result)
    groups = groups_in(tmp_path / "runs")
    plots.plot_tradeoff(groups, figures.colors_of(labels_of(groups)), tmp_path / "speed.png")
    assert size_of(tmp_path / "speed.png")[0] > 600
