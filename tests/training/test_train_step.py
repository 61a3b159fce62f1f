"""The compiled training step, compared with manual arithmetic."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nystromformer_jax.training import (
    MeshConfig,
    TrainState,
    make_mesh,
    make_train_step,
    means,
    shard_batch,
    training_batches,
    weighted,
)
from nystromformer_jax.training.train_step import _split, total_means, zeros_like
from tests.helpers import SAME_ARITHMETIC, assert_close
from tests.training import tiny

SGD = optax.sgd(1.0)


def without_dropout(params, batch, dropout_rng):
    return tiny.loss_fn(params, batch, None)


def one_update(mesh, accumulation=1, loss=without_dropout, weights=None, optimizer=SGD):
    params = tiny.make_params()
    state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
    batch = next(training_batches(tiny.examples(101), batch_size=48, seed=7))
    if weights is not None:
        batch["weights"] = weights
    totals = {name: (jnp.float32(0), jnp.float32(0)) for name in ("loss", "accuracy", "grad_norm")}
    step = make_train_step(loss, optimizer, mesh, seed=3, accumulation=accumulation)
    state, totals, loss_value = step(state, totals, shard_batch(batch, mesh))
    return np.asarray(state.params["kernel"]), jax.device_get(totals), float(loss_value)


@pytest.mark.slow_except("3-8")
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize("accumulation", [2, 3, 6])
def test_accumulation_equals_one_large_batch(devices, accumulation):
    # Weights differ between parts, so a mean of means would be another gradient.
    weights = (np.arange(48) % 11 < np.arange(48) / 5).astype(np.float32)
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    whole = one_update(tiny.one_device(), weights=weights)
    parts = one_update(mesh, accumulation, weights=weights)
    np.testing.assert_allclose(whole[0], parts[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(whole[1]["loss"], parts[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(whole[1]["grad_norm"], parts[1]["grad_norm"], rtol=1e-5)
    np.testing.assert_allclose(whole[2], parts[2], rtol=1e-6)

    def mean_loss(params):
        return without_dropout(params, batch, None)[0] / weights.sum()

    batch = next(training_batches(tiny.examples(101), batch_size=48, seed=7))
    batch = shard_batch({**batch, "weights": weights}, tiny.one_device())
    params = tiny.make_params()
    expected = params["kernel"] - jax.grad(mean_loss)(params)["kernel"]
    np.testing.assert_allclose(whole[0], expected, rtol=0, atol=1e-6)


def test_accumulation_keeps_rows_on_their_device():
    mesh = make_mesh(MeshConfig(), jax.devices())
    batch = shard_batch({"inputs": np.zeros((48, 5), np.float32)}, mesh)
    compiled = jax.jit(lambda batch: _split(batch, 3, mesh)).lower(batch).compile()
    assert not re.search("all-to-all|all-gather|collective-permute", compiled.as_text())


def test_dropout_differs_between_parts_and_steps():
    def draw(params, batch, dropout_rng):
        number = jax.random.uniform(dropout_rng)
        count = batch["weights"].sum()
        loss = (batch["inputs"] @ params["kernel"]).sum() * 0
        return loss, {
            "loss": (loss, count),
            "accuracy": (number, count),
            "squares": (number**2, 1.0),
        }

    optimizer = optax.sgd(1.0)
    params = tiny.make_params()
    step = make_train_step(draw, optimizer, tiny.one_device(), seed=3, accumulation=4)
    batch = next(training_batches(tiny.examples(101), batch_size=8, seed=7))
    seen = []
    for number in (0, 0, 1):
        state = TrainState(jnp.int32(number), tiny.make_params(), optimizer.init(params))
        names = ("loss", "accuracy", "squares", "grad_norm")
        totals = {name: (jnp.float32(0), jnp.float32(0)) for name in names}
        seen.append(jax.device_get(step(state, totals, shard_batch(batch, tiny.one_device()))[1]))
    assert seen[0]["accuracy"] == seen[1]["accuracy"] != seen[2]["accuracy"]
    mean, mean_of_squares = seen[0]["accuracy"][0] / 4, seen[0]["squares"][0] / 4
    assert mean_of_squares - mean**2 > 1e-3  # four equal draws would have no variance


def test_dropout_depends_on_the_seed_of_the_config():
    examples, config = tiny.examples(101), tiny.config()
    batch = next(training_batches(examples, batch_size=8, seed=7))

    def first_loss(seed):
        train = dataclasses.replace(config.train, seed=seed)
        spec = tiny.make_spec(examples, dataclasses.replace(config, train=train))
        state, totals = jax.jit(spec.init_state)()
        return float(spec.make_train_step()(state, totals, shard_batch(batch, spec.mesh))[2])

    assert first_loss(3) != first_loss(4)


def test_grad_norm_is_of_the_mean_gradient_before_clipping():
    clipped = optax.chain(optax.clip_by_global_norm(1e-3), SGD)
    gradient = tiny.make_params()["kernel"] - one_update(tiny.one_device())[0]
    sums = one_update(tiny.one_device(), optimizer=clipped)[1]
    np.testing.assert_allclose(sums["grad_norm"][0], np.linalg.norm(gradient), rtol=1e-5)


def test_short_batches_have_fewer_parts_and_the_same_update():
    sizes = []

    def loss_fn(params, batch, dropout_rng):
        sizes.append(batch["inputs"].shape)
        loss = jnp.square(batch["inputs"] @ params[: batch["inputs"].shape[1]]).sum()
        return loss, {"loss": (loss, batch["weights"].sum())}

    params = jnp.arange(1.0, 33.0)
    found = {}
    for length, full_length, rows in ((32, 32, 2), (16, 32, 4), (3, 32, 8), (16, 0, 2)):
        sizes.clear()
        step = make_train_step(
            loss_fn, SGD, tiny.one_device(), seed=0, accumulation=4, full_length=full_length
        )
        batch = {"inputs": jnp.ones((8, length)) / 32, "weights": jnp.ones(8)}
        state = TrainState(jnp.int32(0), params.copy(), SGD.init(params))
        sums = {name: (jnp.zeros(()), jnp.zeros(())) for name in ("loss", "grad_norm")}
        found[length, full_length] = step(state, sums, batch)[0].params
        assert {shape[0] for shape in sizes} == {rows}
    assert_close(found[16, 32], found[16, 0], SAME_ARITHMETIC)


def test_sums_ignore_rows_of_weight_zero_and_accept_hits():
    values, weights = jnp.array([1.0, jnp.nan, 4.0, jnp.inf]), jnp.array([1.0, 0, 1, 0])
    assert weighted(values, weights) == (5, 2)
    slope = jax.grad(lambda values: weighted(values, weights)[0])(values)
    np.testing.assert_array_equal(slope, [1, 0, 1, 0])
    hits = weighted(jnp.array([True, False, True]), jnp.ones(3))
    assert means({"accuracy": hits}, "train/") == {"train/accuracy": 2 / 3}


def test_mean_over_batches_is_weighted_by_counts_and_nan_without_examples():
    batches = [{"loss": (jnp.float32(6), jnp.float32(3))}, {"loss": (jnp.float32(14), 1)}]
    assert means(jax.tree.map(jnp.add, *batches)) == total_means(batches) == {"loss": 5.0}
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    assert np.isnan(means(zeros_like({"loss": (shape, shape)}))["loss"])
