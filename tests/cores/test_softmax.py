"""Dropout of attention weights."""

import jax
import numpy as np

from nystromformer_jax.cores import make_core
from tests.helpers import random_inputs

SHAPE = (3, 43, 2, 5)


def test_drops_attention_weights_only_if_configured(rngs):
    inputs = random_inputs(rngs, *SHAPE)
    core = make_core("softmax", dropout_rate=0.5)()
    still = core.apply({}, *inputs, deterministic=True)
    dropped = jax.jit(
        lambda rng: core.apply({}, *inputs, deterministic=False, rngs={"dropout": rng})
    )
    one, other = (dropped(next(rngs)) for _ in range(2))
    assert (one != other).any()
    many = [one, other, *(dropped(next(rngs)) for _ in range(98))]
    assert float(np.abs(np.mean(many, axis=0) - still).mean()) < 0.1  # unbiased
    unchanged = make_core("softmax")().apply({}, *inputs, deterministic=False)  # needs no RNG
    assert (unchanged == still).all()
