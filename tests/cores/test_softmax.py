"""Softmax attention as a core: its convolution and its dropout."""

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax import depthwise_convolution, softmax_attention
from nystromformer_jax.cores import make_core
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal, random_inputs

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


def test_an_unmasked_convolution_reads_padding_whose_queries_are_computed_as_well(rngs):
    inputs = random_inputs(rngs, *SHAPE)
    mask = mask_of_lengths([43, 29, 5], SHAPE[1])
    kernel = normal(next(rngs), (SHAPE[2], 5))
    core = make_core("softmax", conv_kernel_size=5, mask_conv=False)()
    variables = {"params": {"conv_kernel": kernel}}
    output = core.apply(variables, *inputs, mask, deterministic=True)
    attended = softmax_attention(*inputs, mask=mask, query_mask=jnp.ones_like(mask))
    assert_close(output, attended + depthwise_convolution(inputs[2], kernel), REFERENCE)
