"""Paired differences, grids of two options, and means over tasks."""

import math

import pytest
from scipy import stats

from lra.report.comparisons import compare, grids, mean_over
from reporting.statistics import binomial_error
from tests.lra.report.runs import FIVE, groups_in, write_run, write_seeds

SOFTMAX = {"name": "softmax"}


def nystrom(landmarks, iters):
    return {"name": "nystrom", "num_landmarks": landmarks, "pinv_iters": iters}


def test_shared_seeds_are_paired(tmp_path):
    ours, theirs = [0.36, 0.38, 0.37, 0.35], [0.35, 0.375, 0.35]
    write_seeds(tmp_path / "a", ours)
    write_seeds(tmp_path / "b", theirs, attention=SOFTMAX)
    (found,) = compare(groups_in(tmp_path))
    expected = stats.ttest_rel(ours[:3], theirs)
    interval = expected.confidence_interval(0.95)
    assert (found.first, found.second) == ("nystrom-64", "softmax")
    assert found.seeds == (0, 1, 2)
    assert found.difference == pytest.approx(100 * (0.01 + 0.005 + 0.02) / 3)
    assert found.half_width == pytest.approx(50 * (interval.high - interval.low))
    assert found.p == found.p_holm == pytest.approx(expected.pvalue)
    assert math.isnan(found.error)


def test_of_one_shared_seed_that_seed_is_compared(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.38, 0.385])
    write_run(tmp_path / "b", seed=0, accuracy=0.35, attention=SOFTMAX)
    (found,) = compare(groups_in(tmp_path))
    assert not found.paired
    assert found.difference == pytest.approx(1.0)
    errors = [100 * binomial_error(accuracy, 2000) for accuracy in (0.375, 0.35)]
    assert found.error == pytest.approx(math.hypot(*errors))
    assert math.isnan(found.p)
    assert math.isnan(found.p_holm)


@pytest.mark.parametrize(
    "other",
    [
        {"steps": (10, 20, 30)},
        {"partial": True},
        {"config": {"train": {"batch_size": 64}}},
        {"config": {"data": {"examples": 7}}},
        {"config": {"eval": {"max_examples": 7}}},
        {"result": {"data_sha256": "b" * 64}},
    ],
)
def test_different_budgets_are_not_compared(tmp_path, other):
    write_seeds(tmp_path / "a", [0.36, 0.37])
    write_seeds(tmp_path / "b", [0.35, 0.37], attention=SOFTMAX, **other)
    assert compare(groups_in(tmp_path)) == []


def test_correction_is_over_all_tasks(tmp_path):
    for task in ("listops", "text"):
        write_seeds(tmp_path / task / "a", [0.36, 0.37, 0.39], task=task)
        write_seeds(tmp_path / task / "b", [0.35, 0.365, 0.37], task=task, attention=SOFTMAX)
    one, other = compare(groups_in(tmp_path))
    assert one.p_holm == pytest.approx(2 * one.p)
    assert other.p_holm == pytest.approx(2 * other.p)


def test_reference_is_the_group_with_most_tasks(tmp_path):
    for landmarks in (16, 32, 64):
        for iters in (2, 6):
            write_run(tmp_path / f"{landmarks}-{iters}", attention=nystrom(landmarks, iters))
    assert {one.second for one in compare(groups_in(tmp_path))} == {"nystrom-64"}  # the usual one
    write_run(tmp_path / "text", task="text", attention=nystrom(32, 2))
    found = compare(groups_in(tmp_path))
    assert len(found) == 5
    assert {one.second for one in found} == {"nystrom-32, 2 iterations"}


def test_settings_of_one_task_are_not_a_reference(tmp_path):
    for number, warmup in enumerate((100, 200, 1000)):
        write_run(
            tmp_path / f"softmax-{number}",
            attention=SOFTMAX,
            config={"optimizer": {"warmup_steps": warmup}},
        )
    for landmarks in (16, 32):
        write_run(tmp_path / str(landmarks), attention=nystrom(landmarks, 6))
    for task in ("listops", "text"):
        write_run(tmp_path / task, task=task, attention={"name": "linear"})
    assert {one.second for one in compare(groups_in(tmp_path))} == {"linear"}


def test_two_numeric_options_make_a_grid(tmp_path):
    for landmarks in (16, 32, 64):
        for iters in (2, 6):
            if (landmarks, iters) != (16, 6):
                attention = nystrom(landmarks, iters)
                write_run(tmp_path / f"{landmarks}-{iters}", attention=attention, partial=True)
    write_run(tmp_path / "softmax", attention=SOFTMAX, partial=True)
    write_run(tmp_path / "other-budget", attention=nystrom(128, 4), partial=True, steps=(50,))
    (grid,) = grids(groups_in(tmp_path))
    assert (grid.row_option, grid.column_option) == ("num_landmarks", "pinv_iters")
    assert (grid.rows, grid.columns) == ([16, 32, 64], [2, 6])
    assert (16, 6) not in grid.cells
    assert grid.cells[32, 2].label == "nystrom-32, 2 iterations"


@pytest.mark.parametrize(
    "attentions",
    [
        [nystrom(16, 6), nystrom(32, 6), nystrom(64, 6)],
        [nystrom(16, 6), nystrom(32, 2)],
        [
            nystrom(n, 6) | {"pinv_start": start}
            for n in (16, 32)
            for start in ("exact", "batch_max")
        ],
        [nystrom(n, 6) | {"mask_conv": flag} for n in (16, 32) for flag in (True, False)],
        [nystrom(16, 2), nystrom(32, 6), nystrom(16, 6) | {"conv_kernel_size": 5}],
    ],
    ids=["one option", "two groups", "words", "flags", "three options"],
)
def test_other_groups_make_no_grid(tmp_path, attentions):
    for number, attention in enumerate(attentions):
        write_run(tmp_path / str(number), attention=attention)
    assert grids(groups_in(tmp_path)) == []


def of_label(groups):
    return {group.task: group for group in groups}


def test_mean_needs_five_complete_tasks(tmp_path):
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / task, [0.1 * number, 0.1 * number + 0.02], task=task)
        cells = of_label(groups_in(tmp_path))
        if number < 4:
            assert mean_over(FIVE, cells) is None
    mean = mean_over(FIVE, cells)
    assert mean[:3] == pytest.approx((2, 21.0, 2**0.5))  # over seeds 20 and 22


def test_no_mean_with_a_partial_task(tmp_path):
    for task in FIVE:
        write_run(tmp_path / task, task=task, partial=task == "image")
    assert mean_over(FIVE, of_label(groups_in(tmp_path))) is None


def test_mean_of_tasks_with_different_seeds_has_no_spread(tmp_path):
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / task, [0.3, 0.4][: 1 + number % 2], task=task)
    mean = mean_over(FIVE, of_label(groups_in(tmp_path)))
    assert mean.mean == pytest.approx((3 * 30 + 2 * 35) / 5)
    assert mean.n == 1
    assert math.isnan(mean.deviation)
