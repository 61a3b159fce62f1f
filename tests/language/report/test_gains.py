"""A pretrained model and the same from scratch, compared example by example."""

import math

import numpy as np
import pytest

from language.glue import TASKS
from language.report import gains, page
from language.tasks.sequences import write_predictions
from tests.language.report.runs import groups_in, write_glue

LABELS = np.array([0, 1, 0, 1, 1, 0, 1])


def write_run(
    folder, right, *, task="sst2", split="valid", seed=0, scratch=False, ids=None, **more
):
    """A run whose predictions are correct for the examples in `right`."""
    write_glue(folder, task, seed=seed, from_scratch=scratch, **more)
    guesses = np.where(np.isin(np.arange(len(LABELS)), right), LABELS, 1 - LABELS)
    ids = np.array([str(i) for i in range(len(LABELS))] if ids is None else ids)
    file = folder / "predictions" / TASKS[task].file_name(split)
    write_predictions(TASKS[task], file, ids, guesses, labels=LABELS)


def scratch_config(**optimizer):
    return {"init": {"from_scratch": True}, "optimizer": optimizer}


def test_error_is_of_paired_differences(tmp_path):
    """Seeds 0 and 1 of both; a seed of only one group is ignored."""
    write_run(tmp_path / "a0", [0, 1, 2, 3, 4, 5], init_sha256="1f" * 32)
    write_run(tmp_path / "a1", [0, 1, 2, 3, 4], seed=1, init_sha256="1f" * 32)
    write_run(tmp_path / "a2", [], seed=2)
    write_run(tmp_path / "b0", [0, 1, 2], scratch=True, config=scratch_config())
    write_run(tmp_path / "b1", [0, 1, 6], seed=1, scratch=True, config=scratch_config())
    (gain,) = gains.find_gains(groups_in(tmp_path))
    differences = np.array([0, 0, 0.5, 1, 1, 0.5, -0.5])
    assert gain.seeds == (0, 1)
    assert gain.examples == 7
    assert gain.accuracies == pytest.approx((11 / 14, 6 / 14))
    assert gain.difference == pytest.approx(differences.mean())
    assert gain.error == pytest.approx(differences.std(ddof=1) / math.sqrt(7))
    text = gains.table([gain]).markdown()
    assert "| 0, 1 | 7 | 42.86 | 78.57 | +35.71 ± 21.03 |" in text


def test_examples_are_paired_by_id(tmp_path):
    write_run(tmp_path / "a", [0, 1, 2])
    names = ["3", "1", "2", "0", "4", "5", "6"]
    write_run(tmp_path / "b", [3, 1, 2], scratch=True, config=scratch_config(), ids=names)
    (gain,) = gains.find_gains(groups_in(tmp_path))
    assert gain.error == 0


def test_rejects_predictions_of_different_examples(tmp_path):
    write_run(tmp_path / "a", [0])
    write_run(tmp_path / "b", [0], scratch=True, config=scratch_config(), ids=list("bcdefgh"))
    with pytest.raises(ValueError, match="predicted different examples"):
        gains.find_gains(groups_in(tmp_path))


def test_gains_need_equal_settings_except_the_start(tmp_path):
    write_run(tmp_path / "a", [0])
    config = scratch_config(learning_rate=1e-3)
    write_run(tmp_path / "b", [0], scratch=True, config=config)
    assert gains.find_gains(groups_in(tmp_path)) == []


def test_gains_need_models_of_one_size(tmp_path):
    write_run(tmp_path / "a", [0], parameters=11)
    write_run(tmp_path / "b", [0], scratch=True, config=scratch_config(), parameters=13)
    assert gains.find_gains(groups_in(tmp_path)) == []


def test_without_predictions_there_is_no_gain(tmp_path):
    write_run(tmp_path / "a", [0])
    write_glue(tmp_path / "b", seed=0, from_scratch=True, config=scratch_config())
    assert gains.find_gains(groups_in(tmp_path)) == []


def test_gain_of_imdb_is_of_the_test_set_and_in_the_report(tmp_path):
    write_run(tmp_path / "a", [0, 1], task="imdb", split="test")
    write_run(tmp_path / "b", [0], task="imdb", split="test", scratch=True, config=scratch_config())
    groups = groups_in(tmp_path)
    text = page.markdown(groups, [], tmp_path / "report")
    assert "## Gains of pretraining" in text
    assert "| IMDb |" in text
    (found,) = page.numbers(groups)["gains"]
    assert found["task"] == "imdb"
    assert found["difference"] == pytest.approx(1 / 7)
