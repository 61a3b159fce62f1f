"""Sums and denominators."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.training import means, weighted
from nystromformer_jax.training.train_step import total_means, zeros_like


def test_ignores_rows_of_weight_zero():
    values = jnp.array([1.0, jnp.nan, 4.0, jnp.inf])
    total, count = weighted(values, jnp.array([1.0, 0, 1, 0]))
    assert (total, count) == (5, 2)
    slope = jax.grad(lambda values: weighted(values, jnp.array([1.0, 0, 1, 0]))[0])(values)
    np.testing.assert_array_equal(slope, [1, 0, 1, 0])


def test_accepts_boolean_hits():
    assert means({"accuracy": weighted(jnp.array([True, False, True]), jnp.ones(3))}) == {
        "accuracy": 2 / 3
    }


def test_sums_batches_of_different_sizes():
    whole = {"loss": weighted(jnp.arange(7.0), jnp.ones(7))}
    parts = [{"loss": weighted(jnp.arange(7.0)[a:b], jnp.ones(b - a))} for a, b in ((0, 2), (2, 7))]
    assert (
        means(jax.tree.map(jnp.add, *parts), "train/")
        == {"train/loss": means(whole)["loss"]}
        == {"train/loss": 3.0}
    )


def test_mean_over_batches_is_weighted_by_counts():
    batches = [
        {"loss": (jnp.float32(6), jnp.float32(3))},
        {"loss": (jnp.float32(14), jnp.float32(1))},
    ]
    assert total_means(batches) == {"loss": 5.0}


def test_mean_of_no_examples_is_nan():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    assert math.isnan(means(zeros_like({"loss": (shape, shape)}))["loss"])
