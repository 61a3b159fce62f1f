"""Pretraining from text to a model folder, on corpora of a few sentences."""

import dataclasses
import functools
import json
import math
import operator
import types

import jax
import numpy as np
import pytest

from language import corpus, pretrain
from language.config import ObjectiveConfig
from language.masking import mask_pairs
from language.tokenizer import load_tokenizer
from nystromformer_jax import NystromformerForPreTraining, training
from nystromformer_jax.pretrained import (
    from_pretrained,
    resize_token_embeddings,
    save_pretrained,
)
from nystromformer_jax.training import NotFinished, Workdir
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close
from tests.language import runs

# Softmax attention compiles faster; the losses and files are the same.
SOFTMAX = {"argument": "demo,attention=softmax", "attention": {"conv_kernel_size": 0}}


@pytest.fixture
def small(tmp_path):
    """A model, its parameters, a corpus, and the objective."""
    run = pretrain.prepare(runs.pretrain_sections(tmp_path, **SOFTMAX))
    data = corpus.load(run.data)
    model = run.model(data.tokenizer.vocab_size)
    # Away from the start, where all predictions are equally likely.
    random = np.random.default_rng(0)
    shapes = jax.eval_shape(run.make_params(model))
    return model, jax.tree.map(lambda x: random.normal(0, 0.3, x.shape).astype("f"), shapes), data


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with a text and a finished run on it, the run's result, and the corpus."""
    folder = tmp_path_factory.mktemp("finished")
    with runs.cache_in(folder):
        result, data = runs.pretrained(folder / "text", folder / "run", **SOFTMAX)
    return folder, result, data


def batch_of(data, rows):
    batch = data.splits["train"].batch(np.arange(rows), 29)
    return {**batch, "weights": np.ones(rows, np.float32)}


@pytest.mark.slow_except("0.7")
@pytest.mark.parametrize("order_weight", [0.0, 0.7])
def test_loss_equals_its_formula(small, order_weight):
    """Computed token by token and pair by pair, from the model's logits at all positions."""
    model, params, data = small
    objective = ObjectiveConfig(order_weight=order_weight)
    vocabulary = pretrain.vocabulary_of(data.tokenizer)
    batch = batch_of(data, 7)
    batch["weights"][5] = 0  # a row that only fills up
    loss, sums = jax.jit(pretrain.make_loss(model, vocabulary, objective))(params, batch, None)

    names = ("inputs", "first_len", "second_len", "example")
    rng = jax.random.fold_in(jax.random.key(pretrain.EVALUATION_SEED), 1)
    draw = jax.jit(functools.partial(mask_pairs, vocabulary=vocabulary, config=objective))
    asked = draw(rng, *(batch[name] for name in names))
    apply = jax.jit(functools.partial(model.apply, deterministic=True))
    tokens, order = apply({"params": params}, asked.inputs, asked.mask, asked.types)
    tokens, order = (np.asarray(jax.nn.log_softmax(logits)) for logits in (tokens, order))
    positions, targets, weights = map(np.asarray, (asked.positions, asked.targets, asked.weights))
    losses, hits, orders, right, wanted = [], [], [], [], []
    for row in range(7):
        if not batch["weights"][row]:
            continue
        for position, target, weight in zip(
            positions[row], targets[row], weights[row], strict=True
        ):
            if weight:
                losses.append(-tokens[row, position, target])
                hits.append(tokens[row, position].argmax() == target)
        wanted.append(max(1, round(0.15 * int(asked.mask[row].sum()))))
        orders.append(-order[row, asked.order[row]])
        right.append(order[row].argmax() == asked.order[row])
    assert_close(sums["mlm_loss"], (sum(losses), len(losses)), REFERENCE)
    assert_close(sums["mlm_accuracy"], (sum(hits), len(hits)), REFERENCE)
    expected = sum(losses)
    if order_weight:
        assert_close(sums["order_loss"], (sum(orders), 6), REFERENCE)
        assert_close(sums["order_accuracy"], (sum(right), 6), REFERENCE)
        expected += order_weight * sum(map(operator.mul, wanted, orders))
    else:
        assert "order_loss" not in sums
    assert_close(loss, expected, REFERENCE)
    assert_close(sums["loss"], (expected, sum(wanted)), REFERENCE)


@pytest.mark.slow(minutes=0.2)
def test_masks_change_every_training_step_and_never_in_evaluation(small):
    model, params, data = small
    vocabulary = pretrain.vocabulary_of(data.tokenizer)
    loss_fn, again = (
        jax.jit(pretrain.make_loss(model, vocabulary, ObjectiveConfig())) for _ in range(2)
    )
    batch = batch_of(data, 7)
    first, second = (loss_fn(params, batch, jax.random.key(seed))[0] for seed in (1, 2))
    assert abs(float(first - second)) > 1e-3
    assert float(loss_fn(params, batch, None)[0]) == float(again(params, batch, None)[0])


def test_run_writes_a_result_and_a_model_folder(finished):
    folder, result, data = finished
    assert json.loads((folder / "run/result.json").read_text()) == result
    assert result["partial"]  # six of 3,000 steps
    valid = result["valid"]
    assert valid["perplexity"] == pytest.approx(math.exp(valid["mlm_loss"]))
    assert result["valid_examples"] == min(20, len(data.splits["valid"]))
    model, variables = from_pretrained(folder / "run/model")
    assert isinstance(model, NystromformerForPreTraining)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == result["parameters"]
    again, _ = runs.pretrained(folder / "text", folder / "run", **SOFTMAX)
    assert again == result


def test_the_models_tokenizer_separates_pairs_as_in_training(finished, tmp_path, monkeypatch):
    """Pairs of pretraining have one separator, also with a tokenizer of RoBERTa, which has two."""
    config, data = runs.pretrain_sections(tmp_path, **SOFTMAX), finished[2]
    roberta = dataclasses.replace(data.tokenizer, pair_separators=2)
    run = pretrain.prepare(config, jax.devices()[:1])

    def end_at_once(workdir, spec, *, report, **_):
        result = types.SimpleNamespace(best_metrics={"mlm_loss": 1.0}, best_examples=3)
        return report(result, jax.jit(spec.make_params)())

    monkeypatch.setattr(training, "train_to_result", end_at_once)
    with Workdir(tmp_path / "run", config) as workdir:
        pretrain.train(run, dataclasses.replace(data, tokenizer=roberta), workdir)
    assert load_tokenizer(tmp_path / "run/model").pair_separators == 1


def test_run_is_partial_with_fewer_pairs_or_steps(finished, tmp_path):
    config = runs.pretrain_sections(tmp_path, train={"total_steps": 3_000})
    run, data = pretrain.prepare(config), finished[2]

    def at_most(examples):
        splits = {**data.splits, "train": data.splits["train"].first(examples)}
        return dataclasses.replace(data, splits=splits)

    assert not pretrain.is_partial(run, data)
    assert not pretrain.is_partial(run, at_most(10**9))
    assert pretrain.is_partial(run, at_most(7))
    fewer_steps = dataclasses.replace(run.fit.train, total_steps=2_999)
    fit = dataclasses.replace(run.fit, train=fewer_steps)
    assert pretrain.is_partial(dataclasses.replace(run, fit=fit), data)


def test_evaluation_of_a_finished_run_gives_the_same_numbers(finished, tmp_path):
    folder, result, data = finished
    config = runs.pretrain_sections(folder / "text", **SOFTMAX)
    run = pretrain.prepare(config, jax.devices()[:1])
    with Workdir(folder / "run", config) as workdir:
        again = pretrain.evaluate_checkpoint(run, data, workdir)
    assert_close(again["valid"], result["valid"], SAME_ARITHMETIC)
    with (
        Workdir(tmp_path / "new", config) as workdir,
        pytest.raises(NotFinished),
    ):
        pretrain.evaluate_checkpoint(run, data, workdir)


def test_training_gets_the_parameters_of_another_model(finished, tmp_path, monkeypatch):
    """The embedding has spare rows."""
    text, _, data = finished
    folder, rows = tmp_path / "model", data.tokenizer.vocab_size + 3
    save_pretrained(folder, *resize_token_embeddings(*from_pretrained(text / "run/model"), rows))
    data.tokenizer.save(folder)
    changes = {
        "data": {**runs.PRETRAIN["data"], "dir": str(next((text / "text").iterdir()))},
        "init": {"checkpoint": str(folder)},
        "train": runs.PRETRAIN["train"],
    }
    config = runs.changed(runs.pretrain_config.get_config("checkpoint"), changes)
    run = pretrain.prepare(config, jax.devices()[:1])
    pretrain.open_tokenizer(run)
    again = corpus.load(run.data)
    assert again.tokenizer.sha256 == data.tokenizer.sha256
    start = lambda *_, make_start_params, **__: make_start_params()
    monkeypatch.setattr(training, "train_to_result", start)
    with Workdir(tmp_path / "second", config) as workdir:
        params = pretrain.train(run, again, workdir)
    assert_close(params, from_pretrained(folder)[1]["params"], SAME_ARITHMETIC)


def test_rejects_sizes_with_a_checkpoint(finished, tmp_path):
    checkpoint = str(finished[0] / "run/model")
    config = runs.pretrain_sections(tmp_path / "text", init={"checkpoint": checkpoint})
    with pytest.raises(ValueError, match=r"model\.\w+: with init\.checkpoint"):
        pretrain.prepare(config)


def test_baselines_are_computed_from_counts(finished):
    _, _, data = finished
    special = set(data.tokenizer.special_ids)
    counts = {}
    for name, pairs in data.splits.items():
        counts[name] = np.zeros(data.tokenizer.vocab_size)
        for index in range(len(pairs)):
            row = pairs.batch(np.array([index]), 29)
            real = int(row["first_len"][0] + row["second_len"][0]) + 3
            for token in row["inputs"][0][:real].tolist():
                counts[name][token] += token not in special
    best = counts["train"].argmax()
    found = pretrain.baselines(data)
    assert found["mlm_accuracy"] == pytest.approx(counts["valid"][best] / counts["valid"].sum())
    rates = (counts["train"] + 1) / (counts["train"] + 1).sum()
    expected = -(counts["valid"] * np.log(rates)).sum() / counts["valid"].sum()
    assert found["mlm_loss"] == pytest.approx(expected)
