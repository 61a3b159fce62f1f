"""Compares scores with numbers computed by hand, and standard errors with a bootstrap."""

import dataclasses
import math

import numpy as np
import pytest

from language.finetune.glue_tasks import TASKS
from language.finetune.metrics import score, standard_error

# Twelve examples: 5 hits, 2 false alarms, 1 miss, 4 rightly left alone.
LABELS = np.array([1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0], np.int32)
GUESSES = np.array([1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0], np.int32)
F1 = 2 * 5 / (2 * 5 + 2 + 1)

# Ranks 1 2 3 4 5 against 2 1 4 3 5: Spearman = 1 - 6 · 4 / (5 · 24).
SCORES = np.array([0.5, 1.0, 2.0, 3.5, 5.0], np.float32)
GIVEN = np.array([2.0, 1.0, 4.0, 3.0, 5.0], np.float32)


def logits_of(guesses, classes):
    """Logits whose largest is the guess, not one-hot."""
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(len(guesses), classes))
    logits[np.arange(len(guesses)), guesses] = 4 + rng.random(len(guesses))
    return logits


@pytest.mark.parametrize("constant", [0, 1])
def test_matthews_of_constant_classes_is_zero_with_a_warning(constant, caplog):
    guesses = np.full(12, constant, np.int32)
    assert score(TASKS["cola"], guesses, LABELS)["matthews"] == 0
    assert "Matthews correlation counts as 0: all 12 predictions are the same" in caplog.text
    assert score(TASKS["cola"], LABELS, guesses)["matthews"] == 0
    assert "all 12 labels are the same" in caplog.text
    for labels in (LABELS, guesses):
        found = score(TASKS["mrpc"], guesses, labels)["f1"]
        assert found == pytest.approx({0: 0, 1: 2 * labels.sum() / (12 + labels.sum())}[constant])
    for name in ("cola", "mrpc", "sst2"):
        assert all(
            math.isfinite(value) for value in standard_error(TASKS[name], guesses, LABELS).values()
        )


def test_correlation_of_constant_scores_is_zero(caplog):
    for same in (np.zeros(5), np.full(5, 3.1), 3.1 + 1e-12 * np.arange(5.0)):
        assert score(TASKS["stsb"], same, GIVEN) == {"pearson": 0, "spearman": 0}
        assert score(TASKS["stsb"], GIVEN, same) == {"pearson": 0, "spearman": 0}
        assert standard_error(TASKS["stsb"], same, GIVEN) == {"pearson": 0, "spearman": 0}
    assert "Pearson correlation counts as 0: all 5 predictions are the same" in caplog.text
    assert score(TASKS["stsb"], GIVEN[:1], GIVEN[:1]) == {"pearson": 0, "spearman": 0}


def test_standard_errors_in_closed_form():
    found = standard_error(TASKS["mrpc"], GUESSES, LABELS)
    assert found["accuracy"] == pytest.approx(math.sqrt(0.75 * 0.25 / 12))
    # F1 is a ratio of means; its numerator is 2 at a hit, its denominator 2 at a hit and 1 at a mistake.
    numerator = np.repeat([2, 0, 0], [5, 3, 4])
    denominator = np.repeat([2, 1, 0], [5, 3, 4])
    by_hand = math.sqrt(((numerator - F1 * denominator) ** 2).sum()) / denominator.sum()
    assert found["f1"] == pytest.approx(by_hand)
    r = 0.8
    spearman = standard_error(TASKS["stsb"], SCORES, GIVEN)["spearman"]
    assert spearman == pytest.approx((1 - r**2) * math.sqrt((1 + r**2 / 2) / 2))


def test_several_labels_and_squared_errors_by_hand():
    task = dataclasses.replace(
        TASKS["mnli"], kind="multi_label", metrics=("micro_f1", "macro_f1", "accuracy")
    )
    logits = np.array([[2, -1, 3], [-1, -2, 0.1], [1, -3, -1]])
    labels = np.array([[1, 1, 1], [0, 0, 1], [0, 0, 0]])
    guesses = task.predict(None, {"logits": logits})
    assert guesses.tolist() == [[1, 0, 1], [0, 0, 1], [1, 0, 0]]
    assert score(task, guesses, labels) == pytest.approx(
        {"micro_f1": 6 / 8, "macro_f1": (2 / 3 + 0 + 1) / 3, "accuracy": 1 / 3}
    )
    residuals = np.array([4, 2, 0]) - 6 / 8 * np.array([5, 2, 1])
    assert standard_error(task, guesses, labels) == pytest.approx(
        {"micro_f1": np.sqrt(np.square(residuals).sum()) / 8, "accuracy": np.sqrt(2 / 3 / 9)}
    )
    regression = dataclasses.replace(TASKS["stsb"], metrics=("mse",))
    assert score(regression, SCORES, GIVEN) == {"mse": pytest.approx((2.25 + 4 + 0.25) / 5)}


def test_error_of_a_correlation_for_normal_data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200_000)
    y = 0.6 * x + 0.8 * rng.normal(size=200_000)
    found = standard_error(TASKS["stsb"], x, y)["pearson"]
    assert found == pytest.approx((1 - 0.6**2) / math.sqrt(200_000), rel=0.02)


@pytest.mark.slow(minutes=0.2)
@pytest.mark.parametrize("name", ["mrpc", "cola", "stsb"])
def test_standard_errors_agree_with_a_bootstrap(name):
    task, rng = TASKS[name], np.random.default_rng(5)
    labels = rng.normal(size=300)
    guesses = 0.7 * labels + 0.6 * rng.normal(size=300)
    if not task.is_regression:
        labels, guesses = (labels > 0.3).astype(int), (guesses > 0.2).astype(int)
    rows = rng.integers(0, 300, (400, 300))
    drawn = [score(task, guesses[row], labels[row]) for row in rows]
    for metric, error in standard_error(task, guesses, labels).items():
        assert error == pytest.approx(np.std([found[metric] for found in drawn]), rel=0.15)


def test_outputs_that_are_not_finite_are_an_error():
    with pytest.raises(ValueError, match="24 of the outputs for SST-2 are not finite"):
        TASKS["sst2"].predict(None, {"logits": np.full((12, 2), np.nan)})


def test_predictions_are_classes_or_the_scores_themselves():
    guesses, labels = np.array([0, 2, 1, 1, 2]), np.array([0, 1, 1, 2, 2])
    predicted = TASKS["mnli"].predict(None, {"logits": logits_of(guesses, 3)})
    assert score(TASKS["mnli"], predicted, labels) == {"accuracy": 0.6}
    assert TASKS["mnli"].predict(
        None, {"logits": np.array([[0.1, 0.3, 0.2], [5, 4, 3]])}
    ).tolist() == [1, 0]
    assert TASKS["stsb"].predict(None, {"logits": np.array([[5.7], [-1.0]])}).tolist() == [
        5.7,
        -1.0,
    ]
