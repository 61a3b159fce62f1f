"""Folders of runs become one table, a row per run."""

import itertools
import json
import math

import pandas as pd
import pytest

from reporting.runs import read_metrics, read_runs, unique_labels
from tests.language.report.runs import write_glue, write_pretraining
from tests.lra.report.runs import write_diverged, write_run, write_speed


def read(folder, *kinds):
    return read_runs([folder], kinds or ["lra"], "run")[0]


def test_a_row_has_the_record_the_config_the_result_and_the_curves(tmp_path):
    write_run(tmp_path / "a", seed=7, accuracy=0.36, recipe="fast", step_seconds=2.0)
    (row,) = read(tmp_path).to_dict("records")
    assert (row["kind"], row["task"], row["seed"]) == ("lra", "listops", 7)
    assert (row["label"], row["recipe"]) == ("nystrom-64", "fast")
    assert row["command"].endswith("--config.train.seed=7")
    assert row["config.train.batch_size"] == 32
    assert (row["test_accuracy"], row["best_step"], row["done_steps"]) == (0.36, 20, 20)
    assert row["metrics"][0]["train/loss"] == 2.0
    assert row["step_seconds"] == 2.0
    assert (row["device"], row["versions"]) == ("1 × cpu, 2 threads", "jax 0.10.2")
    assert row["data_sha256"] == "da7a" * 16


def test_state_of_a_run(tmp_path):
    write_run(tmp_path / "complete")
    write_run(tmp_path / "partial", partial=True, accuracy=1.0)
    write_run(tmp_path / "validated", result={"state": "validated", "test_accuracy": None})
    write_run(tmp_path / "unfinished", finished=False)
    write_diverged(tmp_path / "diverged", step=12)
    runs = pd.concat([read(folder) for folder in tmp_path.iterdir()]).set_index("name")
    assert {name: name for name in runs.index} == runs["state"].to_dict()
    assert runs.loc["diverged", "done_steps"] == 12


def test_only_runs_of_the_given_kinds_are_read(tmp_path):
    write_run(tmp_path / "lra")
    write_glue(tmp_path / "glue")
    write_pretraining(tmp_path / "pretrain")
    (tmp_path / "another").mkdir()
    (tmp_path / "another" / "config.json").write_text('{"model_type": "bert"}')
    for kind in ("lra", "glue", "pretrain"):
        assert list(read(tmp_path, kind)["name"]) == [kind]
    row = read(tmp_path, "glue").iloc[0]
    assert (row["valid.accuracy"], row["valid_standard_error.accuracy"]) == (0.9, 0.015)


def test_runs_are_found_at_any_depth_once_and_named_by_the_end_of_their_paths(tmp_path):
    for seed, name in enumerate(("x/seed0", "y/seed0", "y/seed1")):
        write_run(tmp_path / name, seed=seed)
    (tmp_path / "link").symlink_to(tmp_path / "x")
    runs, _ = read_runs([tmp_path, tmp_path / "x"], ["lra"], "run")
    assert sorted(runs["name"]) == ["seed1", "x/seed0", "y/seed0"]


def test_an_older_run_has_the_name_of_its_attention_as_label(tmp_path):
    file = write_run(tmp_path / "a") / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({k: v for k, v in config.items() if not isinstance(v, str)}))
    assert list(read(tmp_path)[["label", "recipe", "command"]].iloc[0]) == ["nystrom", "", ""]


def test_a_recipe_that_was_renamed_has_its_present_name(tmp_path):
    write_run(tmp_path / "a", recipe="open_small")
    assert read(tmp_path)["recipe"].tolist() == ["mega_small"]


@pytest.mark.parametrize(
    ("file", "change", "word"),
    [
        ("config.json", {"data": 3}, "data.max_len"),
        ("config.json", {"train": {"seed": "1"}}, "seed"),
        ("result.json", {"test_accuracy": 36.0}, "test_accuracy"),
        ("result.json", {"best_step": None}, "best_step"),
        ("result.json", {"state": "diverged"}, "step"),
    ],
)
def test_an_invalid_file_is_named_with_the_key(tmp_path, file, change, word):
    path = write_run(tmp_path / "a") / file
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=f"{path}.*{word}"):
        read(tmp_path)


def test_a_folder_without_runs_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="contains no run"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read(tmp_path / "missing")


def test_of_equal_settings_and_seeds_the_most_complete_is_kept(tmp_path):
    write_run(tmp_path / "a", finished=False)
    write_run(tmp_path / "b", config={"data": {"dir": "/elsewhere"}, "log": {"every_steps": 3}})
    write_run(tmp_path / "c", config={"optimizer": {"learning_rate": 1.0}})
    write_run(tmp_path / "d", result={"data_sha256": "b" * 64})
    kept, left_out = read_runs([tmp_path], ["lra"], "run")
    assert sorted(kept["name"]) == ["b", "c", "d"]
    (sentence,) = left_out
    assert "a is left out" in sentence


def test_equal_labels_are_told_apart_within_a_task():
    values = [(50, 5), (20, 5), (20, 7), (50, 7)]
    for order in itertools.permutations(values):
        settings = [
            tuple({"train.total_steps": a, "optimizer.warmup_steps": b}.items()) for a, b in order
        ]
        groups = pd.DataFrame({"task": ["listops"] * 4 + ["text"], "label": "x"})
        labels = unique_labels(groups.assign(setting=[*settings, settings[0]]))
        assert len(set(labels[:4])) == 4
        assert labels[0] == labels[4] == "x"
        assert any("total_steps=" in label for label in labels)


def test_the_time_of_a_step_is_the_median_of_the_laps_that_count(tmp_path):
    laps = [(10, 6.0), (20, 90.0), (20, 3.0), (30, 9.0)]  # the second lap was repeated
    write_speed(write_run(tmp_path / "a"), laps)
    assert list(read(tmp_path)["step_seconds"]) == [6.0]


def test_an_incomplete_last_line_of_metrics_is_skipped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1, "loss": Infinity}\n{"step": 2, "lo')
    assert read_metrics(file) == [{"step": 1, "loss": math.inf}]
    for line in ('{"loss": 1}', '{"step": 1, "loss": "x"}', "[1]"):
        file.write_text(f'{line}\n{{"step": 2}}\n')
        with pytest.raises(ValueError, match="line 1"):
            read_metrics(file)
    assert read_metrics(tmp_path / "missing.jsonl") == []
