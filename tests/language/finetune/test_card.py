"""Class weights, the model card, and predictions with scores."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language.finetune import trainer
from language.finetune.card import license_of, model_card
from language.finetune.heads import HEADS, Losses
from language.finetune.run import make_loss
from nystromformer_jax.pretrained import load
from tests.helpers import REFERENCE, assert_close
from tests.language.finetune import fakes
from tests.language.finetune.test_trainer import config_of, opened, trained


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A tiny model in the folder of a run, whose card names a license."""
    folder = fakes.checkpoint(tmp_path_factory.mktemp("mine") / "model")
    (folder / "README.md").write_text("---\ntags:\n- a\nlicense: apache-2.0\n---\nlicense: mit\n")
    return folder


def test_a_model_has_a_card_and_predictions_have_scores(tmp_path, checkpoint):
    train = {"epochs": 0.5, "class_weights": "balanced"}
    config = config_of(tmp_path, checkpoint, "classification", train=train)
    config["command"] = "python run_finetune.py --config=x"
    result, run, data, _ = trained(tmp_path, config)
    card = (tmp_path / "run/model/README.md").read_text()
    value = f"{result['valid']['accuracy']:.4f}"
    assert card.startswith("---\nlicense: apache-2.0\npipeline_tag: text-classification\n")
    for words in (
        data.sha256,
        "| accuracy | " + value,
        config["command"],
        ", ".join(data.task.labels),
        f"weights of {checkpoint.parent.name}, whose license is apache-2.0",
        "Class weights of the training loss: balanced",
    ):
        assert words in card
    steps, run = result["total_steps"], run.with_task(data.task)
    assert f"Training: {steps} steps of" in card
    truncated = dataclasses.replace(run.data, truncation="head_tail")
    changed = dataclasses.replace(run, data=truncated)
    early = model_card(changed, data, {"threshold": 0.25}, steps - 1)
    for words in (f"{steps - 1} of {steps} steps (stopped early)", "threshold: 0.25", "head_tail"):
        assert words in early
        assert words not in card
    source = fakes.write(tmp_path, "classification", "new")
    for name, scores in (("new.jsonl", False), ("new.tsv", True)):
        trainer.predict(tmp_path / "run", source, tmp_path / name, scores=scores)
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    header, *rows = [line.split("\t") for line in (tmp_path / "new.tsv").read_text().splitlines()]
    assert header == ["index", "prediction", *data.task.labels]
    names, chances = load(tmp_path / "run/model").classify(
        [row.texts[0] for row in run.data.of_input().read_file(source, labeled=False)]
    )
    for line, row, own in zip(lines, rows, chances, strict=True):
        assert line["prediction"] == row[1] == names[int(own.argmax())]
        assert_close(np.array(list(line["scores"].values()), np.float32), own, REFERENCE)
        assert [float(x) for x in row[2:]] == pytest.approx(own.tolist(), abs=1e-5)


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
