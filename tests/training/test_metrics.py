"""Sums and denominators."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.training import means, weighted
from nystromformer_jax.training.train_step import total_means, zeros_like


def test_ignores_rows_of_weight_zero():
    values, weights = jnp.array([1.0, jnp.nan, 4.0, jnp.inf]), jnp.array([1.0, 0, 1, 0])
    assert weighted(values, weights) == (5, 2)
    slope = jax.grad(lambda values: weighted(values, weights)[0])(values)
    np.testing.assert_array_equal(slope, [1, 0, 1, 0])


def test_accepts_boolean_hits():
    hits = weighted(jnp.array([True, False, True]), jnp.ones(3))
    assert means({"accuracy": hits}, "train/") == {"train/accuracy": 2 / 3}


def test_mean_over_batches_is_weighted_by_counts():
    batches = [{"loss": (jnp.float32(6), jnp.float32(3))}, {"loss": (jnp.float32(14), 1)}]
    assert means(jax.tree.map(jnp.add, *batches)) == total_means(batches) == {"loss": 5.0}


def test_mean_of_no_examples_is_nan():
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    assert math.isnan(means(zeros_like({"loss": (shape, shape)}))["loss"])
