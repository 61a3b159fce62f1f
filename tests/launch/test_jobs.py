"""The grid, the file of jobs, and the choice by validation."""

import shlex

import pytest

from launch.grid import expand, split_values
from launch.jobs import (
    Job,
    chosen_setting,
    due_tests,
    merge,
    read_jobs,
    score_of,
    write_jobs,
)
from launch.status import table
from tests.launch.sweeps import finish

CONFIGS = [
    ("run_lra.py", "configs/listops.py:nystrom,num_landmarks=32"),
    ("run_lra.py", "configs/text.py:softmax"),
]
RATES = {"optimizer.learning_rate": ["1e-4", "1e-3"]}


def test_lists_split_at_commas_outside_brackets():
    assert split_values(["a.b=1, 2", "model.stem=(3,5),(7,)"]) == {
        "a.b": ["1", "2"],
        "model.stem": ["(3,5)", "(7,)"],
    }


def test_grid_is_a_file_of_commands_that_reads_back(monkeypatch, tmp_path):
    values = RATES | {"train.total_steps": ["10"]}
    jobs = expand(tmp_path, CONFIGS, values, seeds=3, data_dir="/my data")
    assert len(jobs) == 2 * 2 * 3
    write_jobs(tmp_path, jobs)
    assert read_jobs(tmp_path) == jobs
    lines = (tmp_path / "jobs.txt").read_text().splitlines()
    name = "text-softmax-learning_rate=1e-3-seed2"
    assert shlex.split(lines[-1]) == [
        *("python", "run_lra.py", "--config=configs/text.py:softmax", "--config.data.dir=/my data"),
        *("--config.optimizer.learning_rate=1e-3", "--config.train.total_steps=10"),
        *("--config.train.seed=2", "--notest", f"--workdir={tmp_path}/{name}"),
    ]
    assert jobs[0].name == "listops-nystrom-num_landmarks=32-learning_rate=1e-4-seed0"
    assert "--config.data.dir=/my data" not in jobs[0].command  # ListOps is generated
    # Runs of a single setting evaluate the test set.
    jobs = expand(tmp_path, CONFIGS, {"train.total_steps": ["10"]}, seeds=1)
    assert not any(job.is_candidate for job in jobs)
    assert jobs[1].name == "text-softmax-seed0"
    monkeypatch.setenv("HOME", str(tmp_path))  # expanded as in a run
    assert Job(tmp_path, ("run", "--workdir=~/a")).folder == tmp_path / "a"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"python run_lra.py --workdir=a", "line 1: "),
        (b"python 'run_lra.py", "line 1: .*quotation"),
        (b"run --config=a --workdir=b/x\nrun --config=a --workdir=c/x", "folder name x"),
        ("python rün_lra.py".encode("latin-1"), "0xfc"),
    ],
)
def test_rejects_an_invalid_file(tmp_path, text, word):
    (tmp_path / "jobs.txt").write_bytes(text)
    with pytest.raises(ValueError, match=rf"jobs\.txt.*{word}"):
        read_jobs(tmp_path)


def test_a_larger_grid_adds_jobs_and_keeps_edited_files(tmp_path):
    jobs = expand(tmp_path, CONFIGS, {}, seeds=2)
    assert merge(jobs, expand(tmp_path, CONFIGS, {}, seeds=1), tmp_path) == jobs
    more = expand(tmp_path, CONFIGS, {}, seeds=3)
    assert {*merge(jobs, more, tmp_path)} == {*more}
    with pytest.raises(ValueError, match="listops-nystrom"):
        merge(jobs, expand(tmp_path, CONFIGS, {"train.total_steps": ["10"]}, 1), tmp_path)


def test_values_cannot_be_added_after_the_choice(tmp_path):
    """The test set is evaluated for one setting, perhaps at this moment."""
    jobs = expand(tmp_path, CONFIGS[:1], RATES, seeds=1)
    more = expand(tmp_path, CONFIGS[:1], {"optimizer.learning_rate": ["1e-4", "1e-3", "1e-2"]}, 1)
    assert len(merge(jobs, more, tmp_path)) == 3
    with pytest.raises(ValueError, match="one choice"):
        merge(expand(tmp_path, CONFIGS[:1], {}, seeds=1), more, tmp_path)
    for states in ([{"test_accuracy": 0.4}, {}], [{}, {}]):
        for job, values in zip(jobs, states, strict=True):
            finish(job, 0.4, **values)
        assert merge(jobs, jobs, tmp_path) == jobs
        with pytest.raises(ValueError, match="one choice"):
            merge(jobs, more, tmp_path)


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({"a": [0.3, 0.5], "b": [0.5, 0.31], "c": [0.9, None]}, "b"),  # the fewest diverged first
        ({"a": [0.3], "b": [0.3]}, "a"),
        ({"a": [None], "b": [None]}, None),
    ],
)
def test_best_setting_has_the_fewest_diverged_seeds_then_the_highest_mean(
    tmp_path, accuracies, best
):
    jobs = []
    for name, values in accuracies.items():
        for seed, accuracy in enumerate(values):
            jobs.append(Job(tmp_path, (name, f"--workdir={tmp_path}/{name}-seed{seed}")))
            finish(jobs[-1], accuracy)
    assert chosen_setting(jobs) == (best and (best,))


def test_language_models_are_evaluated_at_once_and_the_smallest_loss_is_best(tmp_path):
    config = ("run_pretrain.py", "configs/pretrain.py")
    jobs = expand(tmp_path, [config], RATES, seeds=1)
    assert [job.name for job in jobs] == [
        f"pretrain-learning_rate={rate}-seed0" for rate in ("1e-4", "1e-3")
    ]
    assert not any(job.is_candidate for job in jobs)
    for job, loss in zip(jobs, (2.5, 2.0), strict=True):
        finish(job, 0.0, valid={"loss": loss})
    assert chosen_setting(jobs) == jobs[1].setting
    assert "best by validation: pretrain-learning_rate=1e-3" in table(jobs)[0]


def test_only_the_chosen_setting_is_tested_and_only_after_all_have_ended(tmp_path):
    jobs = expand(tmp_path, CONFIGS, RATES, seeds=2)
    low, high = jobs[:2], jobs[2:4]  # of ListOps
    for job, accuracy in zip([*low, high[0]], (0.3, 0.4, 0.9), strict=True):
        finish(job, accuracy)
    assert due_tests(jobs) == []
    finish(high[1], None)  # diverged
    assert due_tests(jobs) == [job.with_test() for job in low]
    assert [job.command for job in due_tests(jobs)] == [
        tuple(word for word in job.command if word != "--notest") for job in low
    ]
    finish(low[0], 0.3, test_accuracy=0.31)
    assert [job.name for job in due_tests(jobs)] == [low[1].name]


def test_the_score_of_a_pretraining_is_no_percentage():
    result = {"state": "complete", "valid": {"loss": 4.87, "mlm_accuracy": 0.3}}
    assert score_of(result) == ("validation loss", 4.87, "")
