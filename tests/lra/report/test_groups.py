"""Runs that differ only by seed are one group."""

import pytest

from lra.report.groups import labels_of, read_groups, tasks_of
from reporting.statistics import binomial_error
from tests.lra.report.runs import groups_in, write_run, write_seeds


def test_seeds_are_grouped_despite_different_paths(tmp_path):
    for seed in (2, 0, 1):
        paths = {"dir": f"/data{seed}", "workers": seed}
        write_run(
            tmp_path / f"run{seed}", seed=seed, accuracy=0.36 + seed / 100, config={"data": paths}
        )
    (group,) = groups_in(tmp_path)
    assert group.accuracies == pytest.approx({0: 36.0, 1: 37.0, 2: 38.0})
    assert group.summary[:3] == pytest.approx((3, 37.0, 1.0))
    assert group.binomial_error == pytest.approx(100 * binomial_error(0.37, 2000))


def test_error_is_of_the_smallest_test_set_and_memory_of_the_largest_run(tmp_path):
    for seed, (examples, gib) in enumerate([(2000, 3), (500, 5), (1000, 4)]):
        result = {"test_examples": examples, "peak_bytes": gib * 2**30}
        write_run(tmp_path / f"run{seed}", seed=seed, accuracy=0.36, result=result)
    (group,) = groups_in(tmp_path)
    assert group.binomial_error == pytest.approx(100 * binomial_error(0.36, 500))
    assert group.peak_bytes == 5 * 2**30


def test_settings_and_tasks_are_separate_groups(tmp_path):
    write_seeds(tmp_path / "a", [0.36, 0.37])
    write_seeds(tmp_path / "b", [0.36], attention={"name": "softmax"})
    write_seeds(tmp_path / "c", [0.6], task="text")
    groups = groups_in(tmp_path)
    assert [(group.task, group.label, len(group.runs)) for group in groups] == [
        ("listops", "nystrom-64", 2),
        ("listops", "softmax", 1),
        ("text", "nystrom-64", 1),
    ]


def test_mean_excludes_partial_and_unfinished_runs(tmp_path):
    write_run(tmp_path / "whole", seed=0, accuracy=0.36)
    write_run(tmp_path / "partial", seed=1, accuracy=0.9, partial=True)
    write_run(tmp_path / "unfinished", seed=2, finished=False, steps=(10, 20))
    (group,) = groups_in(tmp_path)
    assert group.state == "complete"
    assert group.accuracies == {0: 36.0}
    assert group.shortfalls == {
        "20 of 5,000 steps": [1],
        "20 of 5,000 steps, not finished": [2],
    }


def test_a_duplicate_seed_is_dropped_with_a_warning(tmp_path):
    write_run(tmp_path / "a", seed=0, finished=False)
    write_run(tmp_path / "b", seed=0, accuracy=0.36)
    groups, left_out = read_groups([tmp_path])
    assert groups[0].accuracies == {0: 36.0}
    assert len(left_out) == 1
    assert "a is left out: " in left_out[0]
    assert left_out[0].endswith("b has the same task, setting and seed.")


def test_runs_on_other_data_are_a_separate_group(tmp_path):
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, result={"data_sha256": "b" * 64})
    assert [len(group.runs) for group in groups_in(tmp_path)] == [1, 1]


def test_groups_are_sorted_by_task_then_by_steps(tmp_path):
    for landmarks in (128, 16):
        attention = {"name": "nystrom", "num_landmarks": landmarks}
        write_run(tmp_path / str(landmarks), task="text", attention=attention)
    write_seeds(tmp_path / "softmax", [0.6, 0.6], task="text", attention={"name": "softmax"})
    linear = {"name": "linear"}
    write_seeds(tmp_path / "linear", [0.6] * 7, task="text", attention=linear, partial=True)
    write_run(tmp_path / "short", task="listops-short")
    write_run(tmp_path / "listops")
    groups = groups_in(tmp_path)
    assert tasks_of(groups) == ["listops", "text", "listops-short"]
    assert labels_of(groups) == ["nystrom-64", "softmax", "nystrom-16", "nystrom-128", "linear"]
