"""A row of the ablation is the option in which a run differs from the others of its task."""

import shutil

import pytest

from benchmarks import ablation
from nystromformer_jax.durable import read_json, write_json
from tests.lra.report.runs import write_run

SHARED = {"train.seed": 0, "train.total_steps": 20}


def write(folder, name, accuracy, *options, task="listops", overrides=None, max_examples=1000):
    """Writes a run that is not tested; `options` follow the recipe in its argument."""
    recipe = () if "recipe=open" in options else ("recipe=fast",)
    argument = ",".join(["configs/x.py:nystrom", *recipe, *options])
    config = {
        "command": {"config": argument, "overrides": SHARED | (overrides or {})},
        "eval": {"max_examples": max_examples},
    }
    result = {"state": "validated", "valid_accuracy": accuracy, "test_accuracy": None}
    return write_run(folder / name, task=task, config=config, result=result)


def test_rows_name_what_a_run_lacks(tmp_path, capsys):
    write(tmp_path, "a", 0.412)
    write(tmp_path, "b", 0.391, "conv_groups=head")
    write(tmp_path, "c", 0.401, overrides={"model.stem": []})
    write(tmp_path, "d", 0.612, task="image")
    write(tmp_path, "e", 0.64, task="image", overrides={"model.stem": []})
    assert ablation.main([str(tmp_path), "--out", str(tmp_path / "x.json")]) == 0
    rows = read_json(tmp_path / "x.json")["rows"]
    assert [(row["task"], row["change"]) for row in rows] == [
        ("listops", ""),
        ("listops", "model.stem=()"),
        ("listops", "conv_groups=head"),
        ("image", ""),
        ("image", "model.stem=()"),
    ]
    table = capsys.readouterr().out
    assert table == ablation.markdown(rows)
    assert "| ListOps, 20 steps (± 1.6) | Image, 20 steps (± 1.5) |" in table
    assert "| `model.stem=()` | 40.1 (−1.1) | 64.0 (+2.8) |" in table
    assert "| `conv_groups=head` | 39.1 (−2.1) | – |" in table
    assert "AdamW" not in table


def test_rejects_runs_without_a_row(tmp_path, capsys):
    write(tmp_path, "a", 0.4, overrides={"model.stem": []})
    write(tmp_path, "b", 0.4, "conv_groups=head")
    assert ablation.main([str(tmp_path), "--out", str(tmp_path / "x.json")]) == 2
    assert "listops has no run of the whole recipe: add one." in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
    write(tmp_path, "whole", 0.4)
    write(tmp_path, "other", 0.4, "recipe=open")
    with pytest.raises(ValueError, match="The runs of listops differ in recipe: keep those"):
        ablation.rows_of(ablation.find_runs([tmp_path]))
    shutil.rmtree(tmp_path / "other")
    write(tmp_path, "again", 0.4)
    with pytest.raises(ValueError, match="listops has two runs with the same options: remove one"):
        ablation.rows_of(ablation.find_runs([tmp_path]))
    shutil.rmtree(tmp_path / "again")
    write(tmp_path, "long", 0.4, max_examples=0)
    with pytest.raises(ValueError, match=r"long needs --config\.eval\.max_examples"):
        ablation.rows_of(ablation.find_runs([tmp_path]))
    shutil.rmtree(tmp_path / "long")
    result = write(tmp_path, "stopped", 0.4, "conv_kernel_size=0") / "result.json"
    write_json(result, {"state": "diverged", "step": 12})
    with pytest.raises(ValueError, match=r"stopped diverged at step 12: remove the run"):
        ablation.rows_of(ablation.find_runs([tmp_path]))
    shutil.rmtree(tmp_path / "stopped")
    write(tmp_path, "c", 0.4, "num_landmarks=7")
    with pytest.raises(ValueError, match="c differs from the recipe in num_landmarks=7: remove"):
        ablation.rows_of(ablation.find_runs([tmp_path]))


def test_a_flag_with_another_value_is_a_change(tmp_path):
    write(tmp_path, "a", 0.4, overrides={"model.dropout_rate": 0.0, "data.dir": "x"})
    write(tmp_path, "b", 0.5, overrides={"model.dropout_rate": 0.1, "model.stem": []})
    with pytest.raises(ValueError, match=r"a differs from the recipe in model\.dropout_rate=0\.0"):
        ablation.rows_of(ablation.find_runs([tmp_path]))
