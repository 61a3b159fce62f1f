"""The baseline without attention."""

import functools

import jax.numpy as jnp

from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.cores import make_core
from tests.helpers import (
    mask_of_lengths,
    normal,
    random_inputs,
)

SHAPE = (3, 43, 2, 5)


def test_output_is_the_convolution_of_the_value(rngs):
    query, key, value = random_inputs(rngs, *SHAPE)
    mask = mask_of_lengths([43, 29, 5], SHAPE[1])
    kernel = normal(next(rngs), (SHAPE[2], 5))
    core = make_core("none", conv_kernel_size=5)()
    call = functools.partial(core.apply, {"params": {"conv_kernel": kernel}}, deterministic=True)
    output = call(query, key, value, mask)
    real = jnp.where(mask[..., None, None], value, 0)
    assert (output == depthwise_convolution(real, kernel)).all()
    assert (output == call(key, query, value, mask)).all()
    nothing = make_core("none", conv_kernel_size=0)()
    assert (nothing.apply({}, query, key, value, mask, deterministic=True) == 0).all()
