import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention.dropout import Dropout, dropout, random_words
from tests.helpers import normal


@pytest.mark.parametrize(("rate", "shape"), [(0.1, (31, 101, 47)), (0.9, (40, 4096))])
def test_drops_at_its_rate_and_preserves_the_mean(rngs, rate, shape):
    drop = jax.jit(functools.partial(dropout, rate=rate))
    dropped = np.asarray(drop(next(rngs), np.ones(shape, np.float32)))
    count = dropped.size
    error = (rate * (1 - rate) / count) ** 0.5
    assert abs(float((dropped == 0).mean()) - rate) < 4 * error + 1e-5
    assert abs(float(dropped.mean()) - 1) < 4 * error / (1 - rate)
    assert len(np.unique(dropped)) == 2


def test_elements_are_uniform_and_nearly_independent(rngs):
    words = np.asarray(random_words(next(rngs), (200, 2000)), np.float64) / 2**16
    assert abs(words.mean() - 0.5) < 4 * (1 / 12 / words.size) ** 0.5
    assert abs(words.var() - 1 / 12) < 1e-3
    for shift, shared in ((1, 1 / 256), (2, 0)):  # neighbours share a byte
        together = np.corrcoef(words[:, :-shift].ravel(), words[:, shift:].ravel())[0, 1]
        assert abs(together - shared) < 4 / words.size**0.5
    assert abs(np.corrcoef(words[:-1].ravel(), words[1:].ravel())[0, 1]) < 4 / words.size**0.5


def test_a_rate_of_zero_needs_no_random_key():
    x = jnp.ones((2, 3))
    assert Dropout(0.0).apply({}, x, deterministic=False) is x


def test_gradient_is_zero_where_the_value_was_dropped(rngs):
    rng = next(rngs)
    x = normal(next(rngs), (7, 13))
    drop = jax.jit(functools.partial(dropout, rng, rate=0.3))
    gradient = jax.grad(lambda x: drop(x).sum())(x)
    np.testing.assert_allclose(gradient, drop(jnp.ones_like(x)), rtol=1e-6)


def test_drops_the_same_elements_on_one_device_and_on_eight(rngs):
    rng = next(rngs)
    x = jnp.ones((16, 24, 6))
    mesh = jax.make_mesh((4, 2), ("data", "sequence"), (jax.sharding.AxisType.Auto,) * 2)
    sharding = jax.sharding.NamedSharding(mesh, jax.P("data", "sequence"))
    apply = lambda x: dropout(rng, x, 0.3)
    one = jax.jit(apply)(x)
    eight = jax.jit(apply, out_shardings=sharding)(jax.device_put(x, sharding))
    assert (one == eight).all()


def test_scale_at_a_rate_near_one_is_finite(rngs):
    drop = jax.jit(functools.partial(dropout, rate=1 - 2**-18))
    dropped = np.asarray(drop(next(rngs), np.ones(2**18, np.float32)))
    assert 0 < (dropped > 0).mean() < 1e-3
    assert np.isfinite(dropped).all()
