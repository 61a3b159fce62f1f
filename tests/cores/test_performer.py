import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.cores.performer import (
    PerformerAttention,
    log_relu_features,
    log_softmax_features,
    performer_attention,
    random_projection,
)
from tests.cores.test_linear import assert_equals_the_whole_map, from_log_features
from tests.helpers import (
    OTHER_FRAMEWORK,
    assert_close,
    forward_and_gradients,
    largest_array,
    random_inputs,
)

QUERIES, KEYS, HEADS, DIM, FEATURES = 31, 43, 2, 5, 13
jit_projection = jax.jit(random_projection, static_argnums=(1, 2), static_argnames="orthogonal")
LOG_FEATURES = {"softmax": log_softmax_features, "relu": log_relu_features}

both_kernels = pytest.mark.parametrize("kernel", LOG_FEATURES)
both_ways = pytest.mark.parametrize("orthogonal", [True, False])


def many_projections(rng, draws, num_features, dim, orthogonal):
    draw = lambda rng: random_projection(rng, num_features, dim, orthogonal=orthogonal)
    return jax.jit(jax.vmap(draw))(jax.random.split(rng, draws))


@pytest.mark.slow_except("True")
@both_ways
def test_every_row_is_a_standard_normal_vector(orthogonal, rngs):
    draws = 10_000
    rows = np.float64(many_projections(next(rngs), draws, 7, DIM, orthogonal))
    mean, second = rows.mean(axis=0), np.einsum("nrd,nre->rde", rows, rows) / draws
    assert np.abs(mean).max() < 4.5 / draws**0.5
    assert np.abs(second - np.eye(DIM)).max() < 4.5 * (2 / draws) ** 0.5
    fourth = (rows**4).mean(axis=0)
    assert np.abs(fourth - 3).max() < 4.5 * (96 / draws) ** 0.5


def test_rows_are_orthogonal_in_blocks(rngs):
    dim, blocks = 7, 5
    rows = np.float64(jit_projection(next(rngs), dim * blocks + 3, dim, orthogonal=True))
    for start in range(0, len(rows), dim):
        block = rows[start : start + dim]
        gram = block @ block.T
        assert np.abs(gram - np.diag(np.diag(gram))).max() < 1e-4


@both_kernels
def test_equals_attention_with_the_whole_map_of_its_features(kernel, rngs):
    projection = jit_projection(next(rngs), FEATURES, DIM, orthogonal=True)
    attend = functools.partial(performer_attention, projection=projection, kernel=kernel)
    features = lambda x: jnp.exp(LOG_FEATURES[kernel](x, projection))
    assert_equals_the_whole_map(rngs, attend, features)


@both_kernels
def test_large_inputs_neither_overflow_nor_underflow(kernel, rngs):
    query, key, value = random_inputs(rngs, 1, QUERIES, HEADS, DIM, key_length=KEYS)
    inputs = 30 * query, 30 * key, value
    projection = jit_projection(next(rngs), FEATURES, DIM, orthogonal=True)
    attend = functools.partial(performer_attention, projection=projection, kernel=kernel)

    def log_features(x):
        x = np.float64(x) * DIM**-0.25
        projected = np.einsum("lhd,rd->lhr", x, np.float64(projection))
        if kernel == "relu":
            return np.log(np.maximum(projected, 0) + 1e-3)
        return projected - (x**2).sum(-1, keepdims=True) / 2

    output, gradients = forward_and_gradients(attend, inputs, jnp.cos(query))
    expected = from_log_features(*(log_features(x[0]) for x in inputs[:2]), value[0])
    assert_close(output[0], expected, OTHER_FRAMEWORK)  # the exponents are about a thousand
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_never_allocates_a_quadratic_map():
    length, num_features = 4096, 16
    shape = jax.ShapeDtypeStruct((1, length, 1, 8), jnp.float32)
    projection = jax.ShapeDtypeStruct((num_features, 8), jnp.float32)
    assert (
        largest_array(performer_attention, shape, shape, shape, projection) == length * num_features
    )


def test_fixed_features_are_a_constant_of_the_program(rngs):
    inputs = random_inputs(rngs, 1, QUERIES, HEADS, DIM)

    def program(core):
        call = functools.partial(core.apply, {}, deterministic=False)
        rng = {"dropout": jax.random.key(0)}
        return jax.jit(call).lower(*inputs, rngs=rng).as_text()

    assert "stablehlo.while" not in program(PerformerAttention(FEATURES))
    assert "stablehlo.while" in program(PerformerAttention(FEATURES, redraw=True))


def test_training_step_makes_no_library_calls():
    """A batched QR of LAPACK waits for threads of the pool that runs it, see `orthonormal_columns`."""
    draw = lambda rng: random_projection(rng, 70, 32, orthogonal=True)
    compiled = jax.jit(draw).lower(jax.random.key(0)).compile()
    assert "custom-call" not in compiled.as_text()
