"""Runs are found at any depth and validated when they are read."""

import json

import pytest

from language.report.results import find_runs, read_run
from reporting.statistics import binomial_error
from tests.language.report.runs import EXAMPLES, write_glue, write_pretraining


def change(folder, **values):
    file = folder / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return folder


def test_finds_runs_of_both_kinds_and_ignores_others(tmp_path):
    glue = write_glue(tmp_path / "b" / "deep" / "sst2")
    pretraining = write_pretraining(tmp_path / "a")
    (tmp_path / "listops").mkdir()
    (tmp_path / "listops" / "result.json").write_text('{"task": "listops", "test_accuracy": 0.4}')
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "config.json").write_text("{}")
    runs = find_runs([tmp_path, tmp_path / "b"])
    assert [run.folder for run in runs] == [pretraining, glue]
    assert [(run.kind, run.task) for run in runs] == [("pretrain", ""), ("glue", "sst2")]


def test_reads_a_run_with_its_standard_errors(tmp_path):
    run = read_run(write_glue(tmp_path / "mnli", "mnli", value=0.8))
    assert run.scores["valid"].errors == {"accuracy": 0.015}  # as the result has it
    mismatched = run.scores["valid_mismatched"]
    assert mismatched.values == {"accuracy": pytest.approx(0.79)}
    assert mismatched.errors == {"accuracy": binomial_error(0.79, EXAMPLES)}
    assert "test" not in run.scores
    assert run.device == "1 × cpu, 2 threads"


def test_model_name_has_attention_and_checkpoint(tmp_path):
    assert read_run(write_glue(tmp_path / "a")).model == "nystrom-64 from pretrain-small"
    named = write_glue(
        tmp_path / "b", init="bert-base/", config={"attention": {"num_landmarks": 32}}
    )
    assert read_run(named).model == "nystrom-32 from bert-base"
    softmax = {"name": "softmax", "num_landmarks": None}
    without = write_glue(tmp_path / "n", attention="softmax", config={"attention": softmax})
    assert read_run(without).model == "softmax from pretrain-small"
    scratch = write_glue(tmp_path / "c", from_scratch=True)
    assert read_run(scratch).model == "nystrom-64, from scratch"
    assert read_run(write_pretraining(tmp_path / "d", attention="softmax")).model == "softmax"


def test_paths_and_seeds_are_not_part_of_the_setting(tmp_path):
    one = read_run(write_glue(tmp_path / "a", seed=1))
    other = read_run(
        write_glue(
            tmp_path / "b",
            seed=2,
            config={"data": {"dir": "elsewhere"}, "mesh": {"data": 4}},
            init="elsewhere/pretrain-small/model",
        )
    )
    assert one.setting == other.setting
    train = {"remat": True, "cpu_accumulation": 4}
    how = {"data": {"source": "text"}, "eval": {"batch_size": 64}, "train": train}
    assert read_run(write_glue(tmp_path / "how", config=how)).setting == one.setting
    third = read_run(write_glue(tmp_path / "c", config={"train": {"batch_size": 16}}))
    assert third.setting != one.setting


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task": "sst-2"}, "the task 'sst-2' is unknown; did you mean sst2"),
        ({"valid": {"loss": 0.3}}, "valid.accuracy must be a number"),
        ({"valid": {"accuracy": "high"}}, "valid.accuracy must be a number, not 'high'"),
        ({"valid": 0.9}, "valid must be an object, not 0.9"),
        ({"valid": {"accuracy": 91.2}}, "it must be between 0 and 1"),
        ({"seed": "3"}, "seed must be a whole number"),
        ({"attention": 3}, "attention must be a text"),
        ({"step_seconds": "fast"}, "step_seconds must be a number, not 'fast'"),
        ({"valid_examples": "all"}, "valid_examples must be a whole number"),
        ({"device": "cpu"}, "device must be an object"),
    ],
)
def test_rejects_invalid_results(values, words, tmp_path):
    folder = change(write_glue(tmp_path / "run"), **values)
    with pytest.raises(ValueError, match=words) as refusal:
        read_run(folder)
    assert str(folder / "result.json") in str(refusal.value)


def test_rejects_unreadable_and_missing_runs(tmp_path):
    folder = write_pretraining(tmp_path / "run")
    (folder / "result.json").write_text('{"kind": "pre')
    with pytest.raises(ValueError, match=r"result.json cannot be read as JSON"):
        find_runs([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty contains no finished run"):
        find_runs([tmp_path / "empty"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_runs([tmp_path / "nowhere"])
