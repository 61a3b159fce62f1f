import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.longformer import longformer_attention
from tests.helpers import HALF, REFERENCE, assert_close, assert_same_attention, cost, random_inputs

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


@pytest.mark.slow_except("1-3-1", "23-7-1", "29-11-5", "23-5-23")
@pytest.mark.parametrize(
    ("length", "window", "num_global"),
    [
        (1, 3, 1),
        (23, 1, 2),
        *((23, 5, 23), (23, 7, 99), (23, 45, 1), (23, 999, 3)),  # all pairs: softmax attention
        *((23, 3, 0), (23, 7, 1), (29, 11, 5), (31, 31, 1), (37, 35, 3), (37, 71, 0)),
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
    pairs = allowed_pairs(mask, window, num_global)[:, None]
    expected = functools.partial(jax.nn.dot_product_attention, mask=pairs)
    assert_same_attention(actual, expected, inputs, mask)


def test_the_mask_of_keys_does_not_mask_queries_of_another_sequence(rngs):
    query, key, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    mask = jnp.arange(LENGTH)[None] < jnp.array([[LENGTH], [9], [1]])
    masks = {"mask": mask, "query_mask": jnp.ones_like(mask)}
    exact = softmax_attention(query, key, value, **masks)
    for num_global in (1, 3):  # 3 are more than the last example has real keys
        attend = functools.partial(
            longformer_attention, window=2 * LENGTH + 1, num_global=num_global
        )
        assert_close(attend(query, key, value, **masks), exact, REFERENCE)


def test_a_query_without_a_real_key_in_its_window_reads_nothing(rngs):
    query, key, value = random_inputs(rngs, 1, 6, HEADS, DIM)
    mask = jnp.arange(6)[None] >= 3
    masks = {"mask": mask, "query_mask": jnp.ones_like(mask)}
    output = longformer_attention(query, key, value, window=5, num_global=0, **masks)
    assert not output[:, 0].any()  # its window ends before the first real key
    assert output[:, 1].any()


def test_bfloat16_logits_are_float32(rngs):
    # Logits of about 30, which bfloat16 holds to 0.1: such weights would be off by a tenth.
    inputs = [4 * x for x in random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, dtype=jnp.bfloat16)]
    attend = functools.partial(longformer_attention, window=7, num_global=2)
    output = attend(*inputs)
    assert output.dtype == jnp.bfloat16
    assert_close(output, attend(*(x.astype(jnp.float32) for x in inputs)), HALF)


def cost_of(attend, length):
    return cost(attend, *[jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.float32)] * 3)


def test_cost_is_linear_in_the_length():
    attend = functools.partial(longformer_attention, window=33, num_global=2)
    assert (cost_of(attend, 8192) / cost_of(attend, 4096) < 2.05).all()


@pytest.mark.parametrize("window", [501, 10_001])
def test_a_full_window_costs_little_more_than_softmax_attention(window):
    attend = functools.partial(longformer_attention, window=window, num_global=0)
    assert (cost_of(attend, 256) / cost_of(softmax_attention, 256) < 2).all()
