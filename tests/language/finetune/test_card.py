"""Class weights and the model card."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language.finetune import trainer
from language.finetune.card import license_of, model_card
from language.finetune.heads import HEADS, Losses
from language.finetune.run import make_loss
from tests.language.finetune.test_trainer import config_of, opened


def test_a_model_has_a_card(tmp_path, checkpoint):
    config = config_of(tmp_path, checkpoint, "classification")
    config["command"] = "python run_finetune.py --config=x"
    run, data = opened(config)
    metrics = {
        "valid": {"accuracy": 0.25},
        "valid_standard_error": {"accuracy": 0.125},
        "valid_examples": 8,
    }
    card = model_card(run.with_task(data.task), data, metrics)
    assert card.startswith("---\nlicense: apache-2.0\npipeline_tag: text-classification\n")
    row = "| valid | 8 | accuracy | 0.2500 | 0.1250 |"
    for words in (data.sha256, row, config["command"], ", ".join(data.task.labels)):
        assert words in card


def test_a_folder_without_a_card_names_no_license(tmp_path):
    assert license_of(tmp_path) == ""
    (tmp_path / "README.md").write_text("license: mit\n")
    assert license_of(tmp_path) == ""


def test_class_weights_weight_the_mean_loss(monkeypatch):
    losses = jnp.array([1.0, 2.0, 4.0])
    head = HEADS["classification"]._replace(
        losses=lambda logits, labels, mask: Losses(losses, losses > 1, jnp.ones(3))
    )
    monkeypatch.setattr("language.finetune.run._apply", lambda *_: None)
    batch = {"labels": jnp.array([0, 1, 1]), "mask": None, "weights": jnp.array([1.0, 1.0, 0.0])}
    loss, sums = make_loss(None, head, np.array([3.0, 5.0], np.float32))({}, batch, None)
    assert float(loss) == float(sums["loss"][0]) == 3 * 1 + 5 * 2
    assert float(sums["loss"][1]) == 8
    assert [float(x) for x in sums["accuracy"]] == [1, 2]


def test_class_weights_are_balanced_or_one_for_each_label(tmp_path, checkpoint):
    config = config_of(tmp_path, checkpoint, "classification")
    run, data = opened(config)
    run, labels = run.with_task(data.task), data.splits["train"].labels
    count = len(data.task.labels)

    def weights(text):
        train = dataclasses.replace(run.sections["train"], class_weights=text)
        own = dataclasses.replace(run, sections={**run.sections, "train": train})
        return own.class_weights(data.splits["train"])

    assert weights("") is None
    sums = np.bincount(labels, weights("balanced")[labels])
    np.testing.assert_allclose(sums, len(labels) / count, rtol=1e-6)
    assert weights(",".join(["2"] * count)).tolist() == [2] * count
    with pytest.raises(ValueError, match=f"needs {count} numbers"):
        weights("1")
    for kind, text, words in (
        ("classification", "1,-2", "positive numbers"),
        ("regression", "balanced", "has no classes"),
    ):
        changed = config_of(tmp_path, checkpoint, kind, train={"class_weights": text})
        with pytest.raises(ValueError, match=words):
            trainer.prepare(changed, jax.devices()[:1])
