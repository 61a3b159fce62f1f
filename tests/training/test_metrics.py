"""Sums and denominators."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.training import means, weighted
from nystromformer_jax.training.train_step import total_means, zeros_like


def test_rows_of_weight_zero_count_for_nothing_whatever_they_hold():
    values = jnp.array([1.0, jnp.nan, 4.0, jnp.inf])
    total, count = weighted(values, jnp.array([1.0, 0, 1, 0]))
    assert (total, count) == (5, 2)
    slope = jax.grad(lambda values: weighted(values, jnp.array([1.0, 0, 1, 0]))[0])(values)
    np.testing.assert_array_equal(slope, [1, 0, 1, 0])


def test_hits_may_be_booleans():
    assert means({"accuracy": weighted(jnp.array([True, False, True]), jnp.ones(3))}) == {
        "accuracy": 2 / 3
    }


def test_batches_of_different_sizes_add_up():
    whole = {"loss": weighted(jnp.arange(7.0), jnp.ones(7))}
    parts = [{"loss": weighted(jnp.arange(7.0)[a:b], jnp.ones(b - a))} for a, b in ((0, 2), (2, 7))]
    assert (
        means(jax.tree.map(jnp.add, *parts), "train/")
        == {"train/loss": means(whole)["loss"]}
        == {"train/loss": 3.0}
    )


def test_a_mean_over_batches_weighs_each_by_its_count():
    batches = [
        {"loss": (jnp.float32(6), jnp.float32(3))},
        {"loss": (jnp.float32(14), jnp.float32(1))},
    ]
    assert total_means(batches) == {"loss": 5.0}


def test_a_mean_of_nothing_is_nan():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    assert math.isnan(means(zeros_like({"loss": (shape, shape)}))["loss"])
