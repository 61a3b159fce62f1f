import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.linformer import LinformerAttention, linformer_attention
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    assert_same_attention,
    mask_of_lengths,
    normal,
    random_inputs,
)

BATCH, LENGTH, KEY_LENGTH, HEADS, DIM, ROWS = 3, 23, 31, 2, 5, 7
jit_linformer = jax.jit(linformer_attention)


def by_the_paper(query, key, value, projection):
    """The paper's formula in float64 for one example: arrays [L H D], one column per key."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    output = np.empty(query.shape)
    for head, matrix in enumerate(np.asarray(projection, np.float64)):
        logits = query[:, head] @ (matrix @ key[:, head]).T / np.sqrt(query.shape[-1])
        weights = np.exp(logits - logits.max(1, keepdims=True))
        output[:, head] = weights / weights.sum(1, keepdims=True) @ (matrix @ value[:, head])
    return output


def sharp_projection(rngs, length=KEY_LENGTH):
    """Rows far from zero, so that attention over them is not uniform."""
    return normal(next(rngs), (HEADS, ROWS, length)) / 2


def test_identity_projection_gives_softmax_attention(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, KEY_LENGTH)
    identity = jnp.broadcast_to(jnp.eye(KEY_LENGTH), (HEADS, KEY_LENGTH, KEY_LENGTH))
    attend = lambda *tokens: linformer_attention(*tokens, identity)
    assert_same_attention(attend, softmax_attention, inputs, np.ones((BATCH, LENGTH), bool))


def test_agrees_with_the_paper_on_real_tokens(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, KEY_LENGTH)
    projection = sharp_projection(rngs)
    mask = jax.random.bernoulli(next(rngs), 0.6, (BATCH, KEY_LENGTH))
    query_mask = mask_of_lengths([23, 11, 5], LENGTH)
    query, key, value = inputs
    key, value = (jnp.where(mask[..., None, None], x, jnp.nan) for x in (key, value))
    actual = jit_linformer(query, key, value, projection, mask=mask, query_mask=query_mask)
    assert jnp.isfinite(actual).all()
    query, key, value, mask, projection = jax.device_get((query, key, value, mask, projection))
    expected = np.stack(
        [
            by_the_paper(query[b], key[b, mask[b]], value[b, mask[b]], projection[:, :, mask[b]])
            for b in range(BATCH)
        ]
    )
    assert_close(actual, expected, REFERENCE, where=query_mask)


def test_a_shorter_input_equals_the_padded_input(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    core = LinformerAttention(projection_size=ROWS, max_len=KEY_LENGTH)
    variables = core.init(next(rngs), *inputs, deterministic=True)
    # Of order one, so that an extra column would change the output.
    variables = jax.tree.map(lambda x: 20 * x, variables)
    call = jax.jit(functools.partial(core.apply, variables, deterministic=True))
    widths = ((0, 0), (0, KEY_LENGTH - LENGTH))
    padded = [jnp.pad(x, (*widths, (0, 0), (0, 0)), constant_values=7.0) for x in inputs]
    mask = mask_of_lengths([LENGTH] * BATCH, KEY_LENGTH)
    assert_close(call(*padded, mask)[:, :LENGTH], call(*inputs), SAME_ARITHMETIC)


@pytest.mark.parametrize(("max_len", "columns"), [(None, 31), (37, 37)])
def test_projection_has_one_column_per_key(rngs, max_len, columns):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, KEY_LENGTH)
    core = LinformerAttention(projection_size=ROWS, max_len=max_len)
    variables = core.init(next(rngs), *inputs, deterministic=True)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"projection": (HEADS, ROWS, columns)}}
    deviation = variables["params"]["projection"].std()
    assert 0.017 < deviation < 0.023


def test_cost_is_linear_in_the_length():
    def cost(length):
        def total(query, key, value, projection):
            return (linformer_attention(query, key, value, projection) ** 2).sum()

        inputs = [jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.float32)] * 3
        projection = jax.ShapeDtypeStruct((HEADS, ROWS, length), jnp.float32)
        gradient = jax.jit(jax.value_and_grad(total, (0, 1, 2, 3)))
        compiled = gradient.lower(*inputs, projection).compile()
        return np.array(
            [compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes]
        )

    assert (cost(8192) / cost(4096) < 2.05).all()
