"""The baseline without attention; test_parameters.py tests its convolution."""

import jax.numpy as jnp

from nystromformer_jax.cores import make_core
from tests.helpers import random_inputs


def test_output_ignores_queries_and_keys_and_is_zero_without_a_convolution(rngs):
    query, key, value = random_inputs(rngs, 3, 43, 2, 5)
    variables = {"params": {"conv_kernel": jnp.ones((2, 5))}}
    call = make_core("none", conv_kernel_size=5)().apply
    output = call(variables, query, key, value, deterministic=True)
    assert (output == call(variables, key, query, value, deterministic=True)).all()
    assert (make_core("none")().apply({}, query, key, value, deterministic=True) == 0).all()
