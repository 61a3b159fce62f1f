import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import softmax_attention
from nystromformer_jax.cores.linformer import LinformerAttention, linformer_attention
from tests.helpers import assert_same_attention, cost, mask_of_lengths, normal, random_inputs

BATCH, LENGTH, KEY_LENGTH, HEADS, DIM, ROWS = 3, 23, 31, 2, 5, 7


def test_equals_softmax_attention_to_the_projections_of_real_tokens(rngs):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, KEY_LENGTH)
    # Rows far from zero, so that attention over them is not uniform.
    projection = normal(next(rngs), (HEADS, ROWS, KEY_LENGTH)) / 2
    mask = jax.random.bernoulli(next(rngs), 0.6, (BATCH, KEY_LENGTH))
    query_mask = mask_of_lengths([23, 11, 5], LENGTH)

    def formula(query, *tokens):
        rows = [jnp.einsum("HRT,BT,BTHD->BRHD", projection, 1.0 * mask, x) for x in tokens]
        return softmax_attention(query, *rows)

    attend = lambda *tokens: linformer_attention(
        *tokens, projection, mask=mask, query_mask=query_mask
    )
    assert_same_attention(attend, formula, inputs, query_mask)


@pytest.mark.parametrize(("max_len", "columns"), [(None, 31), (37, 37)])
def test_projection_has_one_column_per_key(rngs, max_len, columns):
    inputs = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, KEY_LENGTH)
    core = LinformerAttention(projection_size=ROWS, max_len=max_len)
    variables = core.init(next(rngs), *inputs, deterministic=True)
    assert jax.tree.map(jnp.shape, variables) == {"params": {"projection": (HEADS, ROWS, columns)}}
    deviation = variables["params"]["projection"].std()
    assert 0.017 < deviation < 0.023


def test_cost_is_linear_in_the_length():
    def cost_of(length):
        tokens = [jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.float32)] * 3
        return cost(
            linformer_attention, *tokens, jax.ShapeDtypeStruct((HEADS, ROWS, length), jnp.float32)
        )

    assert (cost_of(8192) / cost_of(4096) < 2.05).all()
