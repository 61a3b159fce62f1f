"""fit: logs, best step, errors, and evaluation."""

import dataclasses
import json
import logging
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nystromformer_jax.training import (
    CheckpointConfig,
    EvalConfig,
    FitConfig,
    LogConfig,
    LossNotFinite,
    MeshConfig,
    OptimizerConfig,
    TrainConfig,
    evaluate,
    evaluation_batches,
    make_eval_step,
    make_mesh,
    make_schedule,
    training_batches,
)
from nystromformer_jax.training import spec as spec_module
from tests.training import tiny


def test_training_learns_logs_and_compiles_once_and_a_finished_run_trains_nothing(
    tmp_path, capsys, caplog
):
    settings = tiny.config(33, log=LogConfig(every_steps=10, events=False))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        outcome = tiny.train(tmp_path, settings)
    compiled = re.findall(r"Compiling jit\((train_step|eval_step)\)", caplog.text)
    assert sorted(compiled) == ["eval_step", "train_step"]
    assert outcome.best_metrics["accuracy"] > 0.7
    train = [line for line in tiny.lines_of(tmp_path) if "train/loss" in line]
    valid = [line for line in tiny.lines_of(tmp_path) if "valid/loss" in line]
    assert [line["step"] for line in train] == [10, 20, 30, 33]  # the last step always
    assert [line["step"] for line in valid] == [10, 20, 30, 33]
    assert train[-1]["train/loss"] < train[0]["train/loss"]
    assert train[0]["learning_rate"] == float(make_schedule(tiny.config(33).optimizer, 33)(9))
    assert all(line["train/grad_norm"] > 0 for line in train)
    speed = tiny.lines_of(tmp_path, "speed.jsonl")
    assert [line["step"] for line in speed] == [10, 20, 30, 33]
    assert all(0 < line["input_share"] <= 1 and line["step_seconds"] > 0 for line in speed)
    assert outcome.train_seconds > 33 * outcome.speed["step_seconds"]
    shown = capsys.readouterr().err
    assert re.search(r"step 33/33: .*train/loss .* examples/s, 00:00 left", shown)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    again = tiny.train(tmp_path, settings, eval_step=lambda *_: pytest.fail("evaluated"))
    assert (again.best_step, again.best_metrics) == (outcome.best_step, outcome.best_metrics)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_train_metrics_are_means_of_their_interval(tmp_path):
    def constant(params, batch, dropout_rng):
        loss = (batch["inputs"] @ params["kernel"]).sum() * 0 + batch["numbers"].sum()
        return loss, {"loss": (loss, batch["weights"].sum())}

    examples = tiny.examples(101)

    def numbered(indices):
        return {**examples.make_batch(indices), "numbers": indices.astype(np.float32)}

    source = type(examples)(101, numbered)
    data = {"training": source, "validation": source}
    tiny.train(tmp_path, tiny.config(10), loss=constant, select="loss", **data)
    rows = training_batches(source, batch_size=8, seed=3)
    numbers = [next(rows)["numbers"].mean() for _ in range(10)]
    train = [line["train/loss"] for line in tiny.lines_of(tmp_path) if "train/loss" in line]
    np.testing.assert_allclose(train, np.reshape(numbers, (2, 5)).mean(1), rtol=1e-6)


def scripted(scores, name="accuracy"):
    """An eval step that returns the next of `scores` (one batch per evaluation)."""
    left = iter(scores)
    return lambda params, batch: {name: (np.float32(next(left)), np.float32(1))}


SCRIPTED = {"validation": tiny.examples(5), "select": "accuracy"}


@pytest.mark.slow_except("scores1-accuracy-10")
@pytest.mark.parametrize(
    ("scores", "select", "best"),
    [
        ((0.2, 0.7, 0.7), "accuracy", 20),
        ((0.7, 0.2, 0.7), "accuracy", 10),
        ((0.1, 0.2, 0.3), "accuracy", 30),
        ((np.nan, 0.1, 0), "accuracy", 20),
        ((0.5, 0.2, 0.3), "loss", 20),
    ],
)
def test_best_step_is_kept_and_the_earliest_wins_ties(tmp_path, scores, select, best):
    evaluation = {**SCRIPTED, "eval_step": scripted(scores, select), "select": select}
    outcome = tiny.train(tmp_path, tiny.SAVES_OFTEN, **evaluation)
    assert outcome.best_step == best
    assert outcome.best_metrics == {select: pytest.approx(scores[best // 10 - 1])}
    kept = {int(folder.name) for folder in (tmp_path / "checkpoints").iterdir()}
    best_of_the_one_before = 20 if best == 30 else best  # used if 30 is damaged
    assert kept == {best_of_the_one_before, 25, best, 30}


def test_a_tie_is_decided_by_the_metric_named_for_it(tmp_path):
    scores = iter([(0.7, 0.5), (0.7, 0.3), (0.7, np.nan)])

    def both(params, batch):
        return {
            name: (np.float32(x), np.float32(1))
            for name, x in zip(("accuracy", "loss"), next(scores), strict=True)
        }

    assert tiny.train(tmp_path, eval_step=both, tie_break="loss", **SCRIPTED).best_step == 20


@pytest.mark.parametrize(("max_examples", "best"), [(0, (10, 0.9)), (3, (20, 0.3))])
def test_a_resumed_run_keeps_its_best_step_unless_it_had_fewer_examples(
    tmp_path, max_examples, best
):
    """A lucky accuracy on 3 examples is not compared with those on all examples."""
    started = tiny.config(eval=EvalConfig(every_steps=10, max_examples=max_examples))
    with pytest.raises(StopIteration):  # at the second evaluation
        tiny.train(tmp_path, started, eval_step=scripted([0.9]), **SCRIPTED)
    outcome = tiny.train(tmp_path, eval_step=scripted([0.3, 0.2]), **SCRIPTED)
    assert (outcome.best_step, outcome.best_metrics["accuracy"]) == pytest.approx(best)


def test_rejects_a_state_of_other_code(tmp_path, monkeypatch):
    # Not a state with other shapes: Orbax leaves reads behind after that error, which fail in later tests.
    with pytest.raises(StopIteration):  # at the second evaluation
        tiny.train(tmp_path, eval_step=scripted([0.9]), **SCRIPTED)
    another = lambda *_: optax.chain(optax.sgd(0.1), optax.adam(0.1))
    monkeypatch.setattr(spec_module, "make_optimizer", another)
    with pytest.raises(ValueError, match=r"step 10 .* different training state"):
        tiny.train(tmp_path, eval_step=scripted([0.9]), **SCRIPTED)


def test_rejects_an_unknown_selection_metric_at_the_first_evaluation(tmp_path):
    with pytest.raises(ValueError, match=r"f1.*: accuracy, loss"):
        tiny.train(tmp_path, select="f1")
    assert max(line["step"] for line in tiny.lines_of(tmp_path)) == 10


def test_every_evaluation_example_counts_once():
    examples = tiny.examples(37, seed=1)
    batch = examples.make_batch(np.arange(37))
    logits = batch["inputs"] @ np.asarray(tiny.make_params()["kernel"])
    expected = (logits.argmax(-1) == batch["labels"]).mean()
    for devices, batch_size in ((1, 5), (1, 64), (8, 16)):
        mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
        step, batches = make_eval_step(tiny.loss_fn, mesh), evaluation_batches
        scores = evaluate(step, tiny.make_params(), batches(examples, batch_size=batch_size), mesh)
        assert scores["accuracy"] == pytest.approx(expected, abs=1e-12)


# At 15, a log step, the loss is still finite and the parameters are not.
@pytest.mark.parametrize(
    ("poison", "poison_value", "poisoned_step"), [("loss", np.nan, 12), ("gradient", 1, 15)]
)
def test_non_finite_loss_or_gradient_stops_before_a_save(
    tmp_path, poison, poison_value, poisoned_step
):
    def poisoned(params, batch, dropout_rng):
        loss, sums = tiny.loss_fn(params, batch, dropout_rng)
        if poison == "loss":
            loss = loss + batch["poison"].sum()
            return loss, {**sums, "loss": (loss, sums["loss"][1])}
        # Where poison is 1 this is sqrt(0): the loss stays finite, its slope is infinity times 0.
        return loss + jnp.sqrt(1 - batch["poison"].max() + 0 * params["kernel"].sum()), sums

    healthy, batches = tiny.examples(101), iter(range(-1, 1000))  # one call determines shapes

    def make_batch(indices):
        value = poison_value if next(batches) == poisoned_step - 1 else 0
        rows = np.full(len(indices), value, np.float32)
        return {**healthy.make_batch(indices), "poison": rows}

    with pytest.raises(LossNotFinite) as stopped:
        tiny.train(
            tmp_path,
            loss=poisoned,
            training=type(healthy)(101, make_batch),
            eval_step=make_eval_step(tiny.loss_fn, tiny.one_device()),
        )
    assert "between steps 11 and 15; the latest checkpoint is of step 10" in str(stopped.value)
    assert "optimizer.learning_rate" in str(stopped.value)
    assert np.isfinite(tiny.last_params(tmp_path, 10)).all()
    assert max(line["step"] for line in tiny.lines_of(tmp_path)) == 10
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["state"], result["step"]) == ("diverged", 15)
    assert result["reason"] == str(stopped.value)
    assert not any("accuracy" in key for key in result)
    # The same command trains nothing and prints the same.
    with pytest.raises(LossNotFinite) as again:
        tiny.train(tmp_path)
    assert str(again.value) == str(stopped.value)


@pytest.fixture
def now(monkeypatch):
    """The time of a clock that advances by one second whenever the host waits for the device."""
    now, device_get = [0.0], jax.device_get

    def wait_one_second(values):
        now[0] += 1
        return device_get(values)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(jax, "device_get", wait_one_second)
    return now


def test_train_seconds_add_up_over_resumes(tmp_path, now):
    def give_up(indices):
        raise KeyError("validation")

    settings = tiny.config(10, checkpoint=CheckpointConfig(every_steps=5))
    with pytest.raises(KeyError):
        tiny.train(tmp_path, settings, validation=tiny.examples(37, on_batch=give_up))
    began = now[0]
    outcome = tiny.train(tmp_path, settings)
    assert outcome.train_seconds > now[0] - began > 0


@pytest.mark.usefixtures("now")
def test_waiting_for_the_device_before_a_save_is_step_time(tmp_path):
    every_step = CheckpointConfig(every_steps=1)
    seldom = {"eval": EvalConfig(every_steps=100), "log": LogConfig(every_steps=3, events=False)}
    result = tiny.train(tmp_path, tiny.config(3, checkpoint=every_step, **seldom))
    assert result.speed["step_seconds"] >= 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 12, "accumulation": 2}, r"train\.batch_size=12 .* mesh\.data=8"),
        ({"batch_size": 8, "accumulation": 3}, r"train\.batch_size=8 .* train\.accumulation=0"),
    ],
)
def test_rejects_batches_that_the_mesh_does_not_divide(change, words):
    optimizer = OptimizerConfig(learning_rate=1.0, warmup_steps=0)
    config = FitConfig(train=TrainConfig(total_steps=1, **change), optimizer=optimizer)
    with pytest.raises(ValueError, match=words):
        config.check_batches(make_mesh(MeshConfig(), jax.devices()))


@pytest.mark.parametrize(("array", "devices"), [(np.asarray, 1), (jnp.asarray, 8)])
def test_starts_from_given_parameters(tmp_path, array, devices):
    """With a learning rate near zero the result equals them; a resumed run keeps its own parameters."""
    given = {"kernel": array(np.full((tiny.FEATURES, tiny.CLASSES), 0.25, np.float32))}
    still = OptimizerConfig(learning_rate=1e-30, warmup_steps=0)
    short = dataclasses.replace(tiny.config(total_steps=10), optimizer=still)
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    outcome = tiny.train(tmp_path, short, start_params=given, mesh=mesh)
    assert (tiny.last_params(tmp_path, outcome.best_step) == given["kernel"]).all()
    assert (given["kernel"] == 0.25).all()  # the caller's arrays are unchanged
    tiny.train(tmp_path, short, start_params={"kernel": 0 * given["kernel"]})
    assert (tiny.last_params(tmp_path, outcome.best_step) == given["kernel"]).all()


def test_metrics_may_be_computed_from_all_outputs(tmp_path):
    """A median, which sums cannot give; every example counts once."""
    outputs = []

    def eval_step(params, batch):
        return {"labels": batch["labels"], "weights": batch["weights"]}

    def summarize(batches):
        outputs.append(len(batches))
        labels = np.concatenate([batch["labels"] for batch in batches])
        weights = np.concatenate([batch["weights"] for batch in batches])
        return {"median": float(np.median(labels[weights > 0])), "rows": float(weights.sum())}

    score = {"eval_step": eval_step, "summarize": summarize, "select": "median"}
    outcome = tiny.train(tmp_path, tiny.config(10), **score)
    assert outcome.best_metrics["rows"] == 37
    assert outputs == [5]  # 37 examples in batches of 8


def test_a_state_that_is_not_finite_is_not_evaluated(tmp_path):
    """Otherwise an error of the trainer's metrics would hide ours."""

    def summarize(batches):
        raise AssertionError("evaluated")

    wild = OptimizerConfig(learning_rate=1e38, warmup_steps=0)
    rarely = {"log": LogConfig(every_steps=100), "checkpoint": CheckpointConfig(every_steps=100)}
    settings = dataclasses.replace(tiny.config(**rarely), optimizer=wild)
    with pytest.raises(LossNotFinite, match="became NaN or infinite between steps 1 and 10"):
        tiny.train(tmp_path, settings, summarize=summarize)
    assert "valid" not in (tmp_path / "metrics.jsonl").read_text()


def test_training_ends_after_evaluations_without_a_better_one(tmp_path, capsys):
    settings = tiny.config(60, eval=EvalConfig(every_steps=10, patience=2))
    with pytest.raises(StopIteration):  # at the third evaluation
        tiny.train(tmp_path, settings, eval_step=scripted([0.5, 0.4]), **SCRIPTED)
    outcome = tiny.train(tmp_path, settings, eval_step=scripted([0.7, 0.7, 0.1]), **SCRIPTED)
    assert (outcome.best_step, outcome.last_step) == (30, 50)
    assert "2 evaluations in a row were not better than that of step 30" in capsys.readouterr().err
    again = tiny.train(tmp_path, settings, eval_step=scripted([]), **SCRIPTED)
    assert (again.best_step, again.last_step) == (30, 50)
