import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.longformer import LongformerAttention, longformer_attention
from tests.helpers import (
    HALF,
    REFERENCE,
    assert_close,
    mask_of_lengths,
    normal,
    random_inputs,
)

BATCH, LENGTH, HEADS, DIM = 3, 23, 2, 5


def allowed_pairs(mask, window, num_global):
    """Returns the pairs of tokens that attend to each other, [B L L], as the docstring describes them."""
    mask = np.asarray(mask)
    allowed = np.zeros((*mask.shape, mask.shape[1]), bool)
    for b, real in enumerate(np.flatnonzero(row) for row in mask):
        first = set(real[:num_global])
        for i in real:
            for j in real:
                allowed[b, i, j] = abs(i - j) <= window // 2 or i in first or j in first
    return allowed


def dense_attention(query, key, value, allowed):
    """Softmax over allowed pairs; rows without any give zeros."""
    logits = jnp.einsum("blhd,bthd->bhlt", query, key) / np.sqrt(query.shape[-1])
    weights = jnp.where(allowed[:, None], jnp.exp(logits), 0)
    total = jnp.where(allowed.any(-1)[:, None], weights.sum(-1), 1)
    return jnp.einsum("bhlt,bthd->blhd", weights / total[..., None], value)


@functools.partial(jax.jit, static_argnums=0)
def output_and_gradient(attend, inputs, cotangent):
    output, pull_back = jax.vjp(attend, *inputs)
    return output, pull_back(cotangent)


def assert_same(rngs, actual, expected, inputs, mask):
    """Compares outputs at real tokens, and the gradients of the loss at real tokens."""
    cotangent = normal(next(rngs), inputs[0].shape) * mask[..., None, None]
    output, gradient = output_and_gradient(actual, inputs, cotangent)
    reference, reference_gradient = output_and_gradient(expected, inputs, cotangent)
    assert_close(output, reference, REFERENCE, where=mask)
    assert_close(gradient, reference_gradient, REFERENCE)


@pytest.mark.slow_except("45-0", "5-23")
@pytest.mark.parametrize(
    ("window", "num_global"), [(45, 0), (45, 1), (999, 3), (1, 23), (5, 23), (7, 99)]
)
def test_a_full_window_or_all_global_tokens_give_softmax_attention(rngs, window, num_global):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([23, 13, 2], LENGTH)
    actual = functools.partial(
        longformer_attention, window=window, num_global=num_global, mask=mask
    )
    expected = functools.partial(softmax_attention, mask=mask)
    assert_same(rngs, actual, expected, inputs, mask)


@pytest.mark.slow_except("1-3-1", "23-7-1", "29-11-5")
@pytest.mark.parametrize(
    ("length", "window", "num_global"),
    [
        (1, 3, 1),
        (23, 1, 2),
        (23, 3, 0),
        (23, 7, 1),
        (29, 11, 5),
        (31, 31, 1),
        (37, 35, 3),
        (37, 71, 0),
    ],
)
def test_agrees_with_dense_attention_under_a_mask_of_pairs(rngs, length, window, num_global):
    inputs = random_inputs(rngs, BATCH, length, HEADS, DIM)
    mask = jnp.stack(
        [
            jnp.ones(length, bool),
            jnp.arange(length) >= length // 3,  # padding in front
            jax.random.bernoulli(next(rngs), 0.6, (length,)),  # and between
        ]
    )
    actual = functools.partial(
        longformer_attention, window=window, num_global=num_global, mask=mask
    )
    expected = functools.partial(dense_attention, allowed=allowed_pairs(mask, window, num_global))
    assert_same(rngs, actual, expected, inputs, mask)


@pytest.mark.parametrize("changed", [3, 11, 22])
def test_a_token_affects_its_window_and_global_tokens(rngs, changed):
    attend = functools.partial(longformer_attention, window=7, num_global=2)
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    others = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    there = (jnp.arange(LENGTH) == changed)[None, :, None, None]
    output = attend(*inputs)
    moved = attend(*(jnp.where(there, new, x) for new, x in zip(others, inputs, strict=True)))
    felt = (output != moved).any(axis=(0, 2, 3))
    position = np.arange(LENGTH)
    np.testing.assert_array_equal(felt, (abs(position - changed) <= 3) | (position < 2))


def test_a_global_token_affects_all_tokens(rngs):
    attend = functools.partial(longformer_attention, window=3, num_global=2)
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    query, key, value = inputs
    mask = (jnp.arange(LENGTH) >= 5)[None]
    output = attend(query, key, value, mask=mask)
    for changed, reach in (
        (5, LENGTH),
        (6, LENGTH),
        (7, 2 + 2),
    ):  # two tokens see all, two are near
        moved = attend(query, key, value.at[:, changed].add(1.0), mask=mask)
        assert int((output != moved).any(axis=(0, 2, 3))[5:].sum()) == min(reach, LENGTH - 5)


def test_nan_at_positions_masked_by_query_mask_is_ignored(rngs):
    query, key, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = mask_of_lengths([23, 13, 2], LENGTH)
    core = LongformerAttention(window=5)
    call = functools.partial(core.apply, {}, deterministic=True)
    padded = jnp.where(mask[..., None, None], query, jnp.nan)
    assert jnp.isfinite(call(padded, key, value, None, mask)).all()
    expected = call(query, key, value, mask)
    assert_close(call(padded, key, value, mask, mask), expected, REFERENCE, where=mask)


def test_the_window_may_be_a_numpy_integer(rngs, no_annotations):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    expected = longformer_attention(*inputs, window=5)
    assert_close(longformer_attention(*inputs, window=np.int64(5)), expected, REFERENCE)


@pytest.mark.parametrize("window", [0, 4, -3])
def test_rejects_an_even_window(rngs, window):
    inputs = random_inputs(rngs, 1, LENGTH, HEADS, DIM)
    with pytest.raises(ValueError, match="window must be an odd integer"):
        longformer_attention(*inputs, window=window)


def test_rejects_invalid_num_global_and_cross_attention(rngs):
    with pytest.raises(ValueError, match="num_global must be an integer of at least 0, got -1"):
        longformer_attention(*random_inputs(rngs, 1, LENGTH, HEADS, DIM), num_global=-1)
    with pytest.raises(ValueError, match=r"self-attention: .* L = 23 and T = 29"):
        longformer_attention(*random_inputs(rngs, 1, LENGTH, HEADS, DIM, key_length=29))


def test_bfloat16_logits_are_float32(rngs):
    # Logits of about 30, which bfloat16 holds to 0.1: such weights would be off by a tenth.
    inputs = [4 * x for x in random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=jnp.bfloat16)]
    attend = functools.partial(longformer_attention, window=7, num_global=2)
    output = attend(*inputs)
    assert output.dtype == jnp.bfloat16
    assert_close(output, attend(*(x.astype(jnp.float32) for x in inputs)), HALF)


def cost(attend, length):
    """Returns the operations and bytes of the loss and its gradient."""
    inputs = [jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.float32)] * 3
    total = lambda *inputs: (attend(*inputs) ** 2).sum()
    compiled = jax.jit(jax.value_and_grad(total, (0, 1, 2))).lower(*inputs).compile()
    return np.array(
        [compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes]
    )


@pytest.mark.parametrize(("window", "num_global"), [(17, 0), (33, 2)])
@pytest.mark.slow_except("33-2")
def test_cost_is_linear_in_the_length(window, num_global):
    attend = functools.partial(longformer_attention, window=window, num_global=num_global)
    assert (cost(attend, 8192) / cost(attend, 4096) < 2.05).all()


@pytest.mark.parametrize("window", [501, 10_001])
def test_a_full_window_costs_little_more_than_softmax_attention(window):
    attend = functools.partial(longformer_attention, window=window, num_global=0)
    assert (cost(attend, 256) / cost(softmax_attention, 256) < 2).all()
