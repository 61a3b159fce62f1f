import json
import math

import pytest

from lra import report


def write_run(folder, *, task="listops", attention=None, finished=True, steps=(10, 20)):
    folder.mkdir()
    config = {
        "data": {"task": task},
        "attention": attention or {"name": "nystrom", "num_landmarks": 64},
        "train": {"seed": 3},
    }
    (folder / "config.json").write_text(json.dumps(config))
    lines = [{"step": step, "train/loss": 2.0, "train/accuracy": 0.2} for step in steps]
    lines.append({"step": steps[-1], "valid/loss": 2.1, "valid/accuracy": 0.25})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if finished:
        result = {
            "task": task,
            "test_accuracy": 0.36,
            "test_examples": 2000,
            "valid_accuracy": 0.25,
            "best_step": 20,
            "total_steps": 20,
            "step_seconds": 0.9755,
            "device": {"kind": "cpu", "count": 1},
            "partial": False,
        }
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def test_the_binomial_error_of_2000_examples():
    assert report.binomial_error(0.38, 2000) == pytest.approx(0.01085, abs=1e-5)


def test_the_interval_over_five_seeds_is_students():
    mean, half_width = report.t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half_width == pytest.approx(2.7764 * 2.5**0.5 / 5**0.5, rel=1e-4)
    assert math.isnan(report.t_interval([1.0])[1])


def test_seeds_are_told_one_by_one_and_together():
    result = {"task": "listops", "attention": "nystrom", "test_examples": 2000}
    result |= {"valid_accuracy": 0.25, "best_step": 1500}
    results = [result | {"test_accuracy": accuracy} for accuracy in (0.36, 0.37, 0.38)]
    assert "36.00 ± 1.07 % on 2,000 examples" in report.sentence(results[0])
    together = report.sentence_over_seeds(results)
    assert "3 seeds: test accuracy 37.00 %, standard deviation 1.00" in together
    assert "± 2.48 (36.00, 37.00, 38.00)" in together


def test_a_finished_run_shows_its_accuracy_with_its_error(tmp_path, capsys):
    folder = write_run(tmp_path / "run")
    assert report.main([str(folder), "--out", str(tmp_path / "out" / "listops")]) == 0
    table = (tmp_path / "out" / "listops.md").read_text()
    assert (
        "| listops | nystrom-64, seed 3 | 36.00 ± 1.07 | 25.00 | 20 | 20 of 5,000 | 0.976 |"
        in table
    )
    assert capsys.readouterr().out == table
    assert (tmp_path / "out" / "listops.png").read_bytes()[:4] == b"\x89PNG"


def test_an_unfinished_run_says_so(tmp_path):
    run = report.read_run(write_run(tmp_path / "run", finished=False))
    assert "| listops | nystrom-64, seed 3 | not finished | | | 20 |" in report.markdown([run])


def test_what_is_no_run_or_another_task_is_refused_in_a_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert report.main([str(tmp_path / "empty"), "--out", str(tmp_path / "x")]) == 2
    assert "holds no run" in capsys.readouterr().err
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", task="text")]
    assert report.main([*map(str, folders), "--out", str(tmp_path / "x")]) == 2
    assert "these are of listops, text" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
