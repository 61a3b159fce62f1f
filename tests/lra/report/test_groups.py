"""Runs that differ only by seed are one group; groups of one budget are compared."""

import math

import pytest
from scipy import stats

from lra.report.groups import compare, group, mean_over, read, trivial_of
from reporting.statistics import binomial_error
from tests.lra.report.runs import (
    FIVE,
    groups_in,
    write_diverged,
    write_run,
    write_seeds,
)

SOFTMAX = {"name": "softmax"}


def only(groups):
    (row,) = groups.to_dict("records")
    return row


def test_seeds_are_grouped_despite_different_paths(tmp_path):
    """The error is that of the smallest test set, and the memory that of the largest run."""
    for seed, (examples, gib) in enumerate([(2000, 3), (500, 5), (1000, 4)]):
        config = {"data": {"dir": f"/data{seed}", "workers": seed}}
        result = {"test_examples": examples, "peak_bytes": gib * 2**30}
        accuracy = 0.36 + seed / 100
        write_run(tmp_path / f"{seed}", seed=seed, accuracy=accuracy, config=config, result=result)
    row = only(groups_in(tmp_path))
    assert row["accuracies"] == pytest.approx({0: 36.0, 1: 37.0, 2: 38.0})
    assert (row["n"], row["mean"], row["deviation"]) == pytest.approx((3, 37.0, 1.0))
    assert row["binomial_error"] == pytest.approx(100 * binomial_error(0.37, 500))
    assert row["peak_bytes"] == 5 * 2**30


def test_mean_is_of_complete_runs_or_else_of_partial_ones(tmp_path):
    write_run(tmp_path / "partial", seed=1, accuracy=0.9, partial=True)
    write_run(tmp_path / "unfinished", seed=2, finished=False)
    write_diverged(tmp_path / "diverged", seed=3)
    row = only(groups_in(tmp_path))
    assert (row["state"], row["seeds"], row["mean"]) == ("partial", [1], 90.0)
    write_run(tmp_path / "whole", seed=0, accuracy=0.36)
    row = only(groups_in(tmp_path))
    assert (row["state"], row["seeds"], row["mean"]) == ("complete", [0], 36.0)
    assert (row["runs"], row["diverged"]) == (4, 1)


def test_groups_are_sorted_by_task_then_the_most_complete_first(tmp_path):
    text = {"task": "text"}
    write_seeds(tmp_path / "softmax", [0.6, 0.6], attention=SOFTMAX, **text)
    write_seeds(tmp_path / "linear", [0.6] * 7, attention={"name": "linear"}, partial=True, **text)
    write_run(tmp_path / "nystrom", **text)
    write_run(tmp_path / "short", task="listops-short")
    write_run(tmp_path / "listops", recipe="fast")
    assert groups_in(tmp_path)[["task", "name"]].to_numpy().tolist() == [
        ["listops", "nystrom-64, recipe=fast"],
        ["text", "softmax"],
        ["text", "nystrom-64"],
        ["text", "linear"],
        ["listops-short", "nystrom-64"],
    ]


def test_names_are_unique_across_recipes(tmp_path):
    write_run(tmp_path / "a", recipe="")
    write_run(tmp_path / "b", label="nystrom-64", config={"data": {"seed": 3}})
    write_run(tmp_path / "c", recipe="quirks=mlpen", config={"data": {"seed": 4}})
    names = set(groups_in(tmp_path)["name"])
    assert len(names) == 3
    assert "nystrom-64, quirks=mlpen" in names


def test_an_unknown_task_is_an_error_and_trivial_predictors_are_those_of_the_runs(tmp_path):
    write_run(tmp_path / "a", result={"baselines": {"constant answer": 0.2}})
    runs = read([tmp_path])[0]
    assert trivial_of(runs, "listops") == {"constant answer": 20}
    assert trivial_of(runs.assign(baselines=[{}]), "listops")["first token alone"] == 35.9
    write_run(tmp_path / "b", task="listop")
    with pytest.raises(ValueError, match="listops"):
        read([tmp_path])


def test_speed_is_the_median_over_seeds(tmp_path):
    write_run(tmp_path / "a", seed=0, step_seconds=1.0)
    write_run(tmp_path / "b", seed=1, step_seconds=1.2)
    write_run(tmp_path / "c", attention=SOFTMAX, step_seconds=2.0)
    groups = groups_in(tmp_path)
    assert list(groups["step_seconds"]) == pytest.approx([1.1, 2.0])
    assert groups.iloc[0]["examples_per_second"] == pytest.approx(32 / 1.1)


def test_shared_seeds_are_paired(tmp_path):
    ours, theirs = [0.36, 0.38, 0.37, 0.35], [0.35, 0.375, 0.35]
    write_seeds(tmp_path / "a", ours)
    write_seeds(tmp_path / "b", theirs, attention=SOFTMAX)
    found = only(compare(groups_in(tmp_path)))
    expected = stats.ttest_rel(ours[:3], theirs)
    interval = expected.confidence_interval(0.95)
    assert (found["first"], found["second"], found["seeds"]) == ("nystrom-64", "softmax", [0, 1, 2])
    assert found["difference"] == pytest.approx(100 * (0.01 + 0.005 + 0.02) / 3)
    assert found["half_width"] == pytest.approx(50 * (interval.high - interval.low))
    assert found["p"] == found["p_holm"] == pytest.approx(expected.pvalue)
    assert math.isnan(found["binomial_error"])


def test_of_one_shared_seed_that_seed_is_compared(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.38, 0.385])
    write_run(tmp_path / "b", seed=0, accuracy=0.35, attention=SOFTMAX)
    found = only(compare(groups_in(tmp_path)))
    errors = [100 * binomial_error(accuracy, 2000) for accuracy in (0.375, 0.35)]
    assert found["difference"] == pytest.approx(1.0)
    assert found["binomial_error"] == pytest.approx(math.hypot(*errors))
    assert math.isnan(found["p"] + found["p_holm"])


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
    assert len(compare(groups_in(tmp_path))) == 0


def test_many_groups_are_compared_with_the_one_of_most_tasks(tmp_path):
    for landmarks in (16, 32, 64, 128, 256, 512):
        attention = {"name": "nystrom", "num_landmarks": landmarks}
        write_run(tmp_path / str(landmarks), attention=attention)
    write_run(tmp_path / "text", task="text", attention={"name": "nystrom", "num_landmarks": 32})
    found = compare(groups_in(tmp_path))
    assert len(found) == 5
    assert set(found["second"]) == {"nystrom-32"}


def test_mean_over_tasks_has_a_spread_if_all_have_the_same_seeds(tmp_path):
    for number, task in enumerate(FIVE):
        write_seeds(tmp_path / task, [0.1 * number, 0.1 * number + 0.02], task=task)
    mean = mean_over(groups_in(tmp_path).to_dict("records"))
    assert mean[:3] == pytest.approx((2, 21.0, 2**0.5))  # over seeds 20 and 22
    write_run(tmp_path / "more", task="image", seed=2, accuracy=0.31)
    mean = mean_over(group(read([tmp_path])[0]).to_dict("records"))
    assert (mean.n, math.isnan(mean.deviation)) == (2, True)
