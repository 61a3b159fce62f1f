"""Partial runs, steps, losses, class weights and batches of a fine-tuning, without training."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language.config import (
    FinetuneEvalConfig,
    FinetuneOptimizerConfig,
    FinetuneTrainConfig,
)
from language.finetune import trainer
from language.finetune.data import TaskData
from language.finetune.heads import HEADS, Losses
from language.finetune.run import collate, is_partial, make_loss, mean_loss
from tests.helpers import OTHER_FRAMEWORK, REFERENCE, assert_close
from tests.language import runs
from tests.language.finetune import fakes
from tests.language.finetune.test_trainer import config_of, opened


@pytest.mark.parametrize(
    ("splits", "changes", "partial"),
    [
        ({}, {}, False),
        ({}, {"train": {"epochs": 1.0}}, False),
        ({}, {"train": {"total_steps": 10**6}}, False),
        ({}, {"eval": {"max_examples": 1_725}}, False),
        ({}, {"train": {"epochs": 0.9}}, True),
        ({}, {"train": {"total_steps": 916}}, True),  # of 917 in two passes
        ({}, {"eval": {"max_examples": 1_724}}, True),
        ({"train": 3_600}, {}, True),
        ({"valid": 400}, {}, True),
    ],
)
def test_run_is_partial_if_it_saw_or_evaluated_less(tmp_path, checkpoint, splits, changes, partial):
    run = trainer.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint, **changes))
    counts = {**run.task.sizes, **splits}
    own = {name: range(size) for name, size in counts.items()}
    assert is_partial(run, TaskData(run.task, None, own, "", tmp_path, counts)) == partial


@pytest.mark.parametrize(("examples", "partial"), [(0, False), (7, True), (999, False)])
def test_a_run_on_a_sample_of_a_file_is_partial(tmp_path, checkpoint, examples, partial):
    file = fakes.write(tmp_path, "classification")
    changes = {"data": {"examples": examples}}
    run = trainer.prepare(fakes.sections("classification", file, checkpoint, **changes))
    data = trainer.load_data(run)
    assert is_partial(run, data) == partial
    rows = data.splits["train"].ids.astype(int).tolist()
    assert (rows == sorted(rows)) == (not partial)  # only a sample is in random order


def test_evaluates_after_each_epoch_rounded_up_to_full_steps(tmp_path, checkpoint):
    run = trainer.prepare(runs.glue_sections("mrpc", tmp_path, checkpoint))
    for examples, steps in ((40, 5), (41, 6), (47, 6)):  # in batches of 8
        assert run.fit_config(examples).eval.every_steps == steps


def test_epochs_are_converted_to_steps():
    train = functools.partial(FinetuneTrainConfig, batch_size=32)
    assert train(epochs=4.0).in_steps(3_668).total_steps == 459
    assert train(epochs=0.5).in_steps(3_668).total_steps == 58
    assert train(epochs=4.0, total_steps=7).in_steps(3_668).total_steps == 7
    optimizer = FinetuneOptimizerConfig(learning_rate=3e-5, warmup_share=0.05)
    assert optimizer.in_steps(459).warmup_steps == 23
    assert FinetuneEvalConfig().in_steps(115).every_steps == 115
    assert FinetuneEvalConfig(every_steps=9).in_steps(115).every_steps == 9


def test_loss_is_a_mean_over_the_labels_of_rows_with_weight():
    """Two labels, then four in a row of weight 0, then one."""
    logits = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    labels = jnp.array([[1, -1, 1, -1], [3, 3, 3, 3], [-1, 0, -1, -1]])
    batch = {"inputs": labels, "mask": jnp.ones((3, 4), bool), "types": labels, "labels": labels}
    model = types.SimpleNamespace(apply=lambda variables, *_, **__: variables["params"])
    loss_fn = make_loss(model, HEADS["token_classification"])
    loss, sums = loss_fn(jnp.asarray(logits), {**batch, "weights": jnp.array([1.0, 0, 1])}, None)
    words = [(0, 0), (0, 2), (2, 1)]
    expected = sum(np.log(np.exp(logits[at]).sum()) - logits[at][labels[at]] for at in words)
    correct = sum(logits[at].argmax() == labels[at] for at in words)
    assert_close(loss, expected, REFERENCE)
    assert_close(sums, {"loss": (expected, 3), "accuracy": (correct, 3)}, REFERENCE)


def test_collated_outputs_are_in_the_order_of_the_split():
    """Rows of weight 0 are dropped, shorter batches are padded, and the loss is a mean over labels."""
    batches = [
        {
            "outputs": {"classes": np.array([[3, 4, 5], [1, 1, 1]])},
            "loss": np.array([6.0, 2.0]),
            "count": np.array([3.0, 1.0]),
            "rows": np.array([2, 0]),
            "weights": np.array([1.0, 1.0]),
        },
        {
            "outputs": {"classes": np.array([[7, 8], [9, 9]])},
            "loss": np.array([1.0, 99.0]),
            "count": np.array([1.0, 1.0]),
            "rows": np.array([1, 1]),
            "weights": np.array([1.0, 0.0]),
        },
    ]
    outputs = collate(batches)
    assert outputs["classes"].tolist() == [[1, 1, 1], [7, 8, 0], [3, 4, 5]]
    assert mean_loss(batches) == pytest.approx(9 / 5)


def test_examples_of_similar_length_are_padded_together(tmp_path, checkpoint):
    """Batches are shorter than max_len, and the loss of a batch does not depend on its padding."""
    file = fakes.write(tmp_path, "classification")
    argument = ",attention=softmax,max_len=150"
    config = fakes.sections("classification", file, checkpoint, argument, data={"max_len": 150})
    run = trainer.prepare(config)
    data = trainer.load_data(run)
    split = data.splits["train"]
    grouped = run.examples(split)
    assert grouped.lengths.tolist() == (split.lengths[:, 0] + 2).tolist()
    rows = np.arange(len(split))
    short = grouped.fetch(rows)
    assert short["inputs"].shape == (len(split), 16)
    off = dataclasses.replace(run, data=dataclasses.replace(run.data, group_by_length=False))
    full = off.examples(split).fetch(rows)
    assert full["inputs"].shape == (len(split), 150)
    spec = trainer.make_spec(run, len(split))
    params = jax.jit(spec.make_params)()
    weights = {"weights": np.ones(len(split), np.float32)}
    outputs = [spec.compiled_eval_step(params, {**batch, **weights}) for batch in (short, full)]
    assert_close(outputs[0]["loss"], outputs[1]["loss"], OTHER_FRAMEWORK)
    for changes in (
        {"attention": "nystrom", "landmark_layout": "hf"},
        {"mask_conv": False, "conv_kernel_size": 3},
        {"attention": "reformer"},
    ):
        changed = dataclasses.replace(run.model.config, **changes)
        model = dataclasses.replace(run, model=type(run.model)(changed))
        assert model.examples(split).lengths is None


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
