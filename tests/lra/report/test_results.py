"""Runs are found at any depth; those of older versions are read, invalid ones are errors."""

import json

import pytest

from lra.report.results import find_runs, read_run
from tests.lra.report.runs import write_run, write_speed


def test_finds_each_run_below_a_folder_once(tmp_path):
    write_run(tmp_path / "a" / "deep" / "one")
    write_run(tmp_path / "two")
    (tmp_path / "two" / "checkpoints" / "20").mkdir(parents=True)
    found = find_runs([tmp_path, tmp_path / "two", tmp_path / "a" / ".." / "two"])
    assert [folder.name for folder in found] == ["one", "two"]


def test_does_not_follow_links_below_a_folder(tmp_path):
    write_run(tmp_path / "here" / "one")
    write_run(tmp_path / "elsewhere" / "two")
    (tmp_path / "here" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here" / "up").symlink_to(tmp_path)
    assert [folder.name for folder in find_runs([tmp_path / "here"])] == ["one"]


def test_rejects_a_folder_without_runs(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])
    write_run(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"contains no run of the benchmark: config\.json and metrics"
    ):
        find_runs([tmp_path])


def test_skips_runs_of_the_language_model(tmp_path):
    write_run(tmp_path / "ours")
    write_run(tmp_path / "reviews", task="imdb", config={"init": {"checkpoint": ""}})
    assert [folder.name for folder in find_runs([tmp_path])] == ["ours"]
    with pytest.raises(FileNotFoundError, match="contains no run of the benchmark"):
        find_runs([tmp_path / "reviews"])


def minutes(folder, timed):
    write_speed(folder, timed)
    return read_run(folder).train_minutes


def test_minutes_of_training_are_the_sum_over_steps(tmp_path):
    folder = write_run(tmp_path / "run", steps=(10, 20, 30))
    assert read_run(folder).train_minutes == ([], [])
    assert minutes(folder, []) == ([], [])
    assert minutes(folder, [(10, 6), (20, 12), (30, 6)]) == ([10, 20, 30], [1, 3, 4])
    assert minutes(folder, [(5, 6), (30, 12)]) == ([10, 20, 30], [1.5, 3.5, 5.5])
    assert minutes(folder, [(15, 6), (25, 12)]) == ([10, 20], [1, 2.5])  # 30 is not timed yet


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_ignores_invalid_times(tmp_path, seconds):
    folder = write_run(tmp_path / "run", steps=(10, 20))
    assert minutes(folder, [(10, seconds), (20, 6)]) == ([10, 20], [1, 2])


def test_rejects_a_time_that_no_float_can_hold(tmp_path):
    folder = write_run(tmp_path / "run")
    write_speed(folder, [(10, 10**400), (20, 6)])
    with pytest.raises(ValueError, match=r"speed\.jsonl, line 1, .* step_seconds is 10{49}, and a"):
        read_run(folder)


def test_repeated_steps_after_a_kill_count_once(tmp_path):
    folder = write_run(tmp_path / "run", steps=(10, 20, 30))
    before, after = [(10, 6), (20, 6), (30, 6)], [(20, 12), (30, 12)]
    assert minutes(folder, before + after) == ([10, 20, 30], [1, 3, 5])
    # The log interval changed at the resume at step 10.
    steps, times = minutes(folder, [(10, 6), (20, 6), (14, 12), (30, 12)])
    assert steps == [10, 20, 30]
    assert times == pytest.approx([1, 2.4, 4.4])


@pytest.mark.parametrize("name", ["config", "result"])
@pytest.mark.parametrize(
    ("content", "words"), [("{", "cannot be read as JSON"), ("[1]", "must contain a JSON object")]
)
def test_error_names_a_file_that_is_not_json(tmp_path, name, content, words):
    file = write_run(tmp_path / "run") / f"{name}.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"{name}.json {words}"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"data": {"task": "listop"}}, r"config.json: Unknown task 'listop'"),
        ({"attention": {}}, r"config.json is not a run's config: attention.name is missing"),
        ({"train": {"seed": "one"}}, r"config.json: seed must be a whole number, not 'one'"),
        ({"train": {"seed": 3, "budget_steps": "all"}}, r"config.json: budget_steps .*'all'"),
        ({"data": {"task": ["text"]}}, r"config.json: task must be a text"),
        ({"model": 3}, r"config.json: model must be an object, not 3"),
    ],
)
def test_rejects_invalid_configs(tmp_path, config, words):
    file = write_run(tmp_path / "run") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    with pytest.raises(ValueError, match=words):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"test_accuracy": None}, "test_accuracy is missing; it must be a number"),
        ({"test_accuracy": "0.36"}, "test_accuracy must be a number, not '0.36'"),
        ({"best_step": 0.5}, "best_step must be a whole number"),
        ({"total_steps": "20"}, "total_steps must be a whole number"),
        ({"peak_bytes": [3]}, "peak_bytes must be a number"),
        ({"baselines": {"constant answer": "0.1"}}, "constant answer must be a number"),
        ({"device": "cpu"}, "device must be an object"),
        ({"versions": ["0.10.2"]}, "versions must be an object"),
        ({"data_sha256": 7}, "data_sha256 must be a text"),
        ({"test_accuracy": 36.0}, "an accuracy is between 0 and 1"),
        ({"state": "validated", "valid_accuracy": 7.5}, "an accuracy is between 0 and 1"),
        ({"step_seconds": -1}, r"result\.json: step_seconds is -1; it must be positive"),
        ({"step_seconds": 10**400}, r"result\.json: step_seconds must be a number, not 10{49}\."),
        ({"test_examples": 0}, "it must be 1 or more"),
    ],
)
def test_rejects_invalid_results(tmp_path, result, words):
    write_run(tmp_path / "run", result=result)
    with pytest.raises(ValueError, match=words):
        read_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("environment", {"device": "cpu"}, "device must be an object"),
        ("data", {"sha256": 5}, "sha256 must be a text"),
    ],
)
def test_validates_unfinished_runs(tmp_path, name, values, words):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / f"{name}.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"{name}.json: {words}"):
        read_run(folder)


def test_older_results_get_defaults(tmp_path):
    write_run(tmp_path / "run", result=dict.fromkeys(("baselines", "peak_bytes", "device")))
    run = read_run(tmp_path / "run")
    assert (run.result.baselines, run.result.peak_bytes, run.device) == ({}, None, "")


def test_state_and_progress_of_a_run(tmp_path):
    whole = read_run(write_run(tmp_path / "whole", steps=(2500, 5000)))
    assert (whole.state, whole.progress, whole.remark) == ("complete", "5,000", "")
    few = read_run(write_run(tmp_path / "few", steps=(5000,), partial=True))
    assert (few.state, few.progress, few.remark) == ("partial", "5,000", "on fewer examples")
    going = read_run(write_run(tmp_path / "going", finished=False))
    assert (going.state, going.progress, going.remark) == (
        "unfinished",
        "20 of 5,000",
        "not finished",
    )
    own = read_run(write_run(tmp_path / "own", config={"train": {"budget_steps": 40}}))
    assert own.progress == "20 of 40"


def test_reads_a_run_that_has_just_started(tmp_path):
    folder = write_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").write_text("")
    run = read_run(folder)
    assert (run.done_steps, run.curve("train/loss")) == (0, ([], []))
