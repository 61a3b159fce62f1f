"""Early stopping: eval.patience."""

import pytest

from nystromformer_jax.training import EvalConfig
from tests.training import tiny
from tests.training.test_loop import SCRIPTED, scripted


def test_training_ends_after_evaluations_without_a_better_one(tmp_path, capsys):
    settings = tiny.config(60, eval=EvalConfig(every_steps=10, patience=2))
    with pytest.raises(StopIteration):  # at the third evaluation
        tiny.train(tmp_path, settings, eval_step=scripted([0.5, 0.4]), **SCRIPTED)
    outcome = tiny.train(tmp_path, settings, eval_step=scripted([0.7, 0.7, 0.1]), **SCRIPTED)
    assert (outcome.best_step, outcome.last_step) == (30, 50)
    shown = capsys.readouterr().err
    assert "step 40/60: valid/accuracy 0.7, best step 30" in shown
    assert "2 evaluations in a row were not better than that of step 30" in shown
    again = tiny.train(tmp_path, settings, eval_step=scripted([]), **SCRIPTED)
    assert (again.best_step, again.last_step) == (30, 50)
