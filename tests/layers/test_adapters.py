"""Flax's own attention Modules with this library's attention inside."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer_jax import attention_fn, nystrom_attention, softmax_attention
from tests.helpers import REFERENCE, assert_close, normal

B, L, E, H = 3, 23, 12, 2
MASK = jnp.arange(L)[None] < jnp.array([[L], [17], [5]])


def linen(function=None):
    options = {} if function is None else {"attention_fn": function}
    return nn.MultiHeadDotProductAttention(num_heads=H, **options)


def masked_sum(output):
    return (output * MASK[..., None] * jnp.arange(1.0, E + 1)[None, None]).sum()


def test_an_additive_mask_inside_jit_gives_nan(rngs):
    """It cannot raise an error there, and would be read as its opposite."""
    query = normal(next(rngs), (B, L, 2, 4))
    keep = jnp.arange(L)[None, None, None] < jnp.full((B, 1, 1, 1), 5)
    attend = jax.jit(attention_fn(num_landmarks=4))
    assert jnp.isfinite(attend(query, query, query, mask=keep.astype(jnp.float32))).all()
    assert jnp.isnan(attend(query, query, query, mask=jnp.where(keep, 0, -1e9))).all()


# Nyström attention is exact for few tokens.
EXACT = {"softmax": attention_fn("softmax"), "nystrom": attention_fn("nystrom", num_landmarks=L)}


@pytest.mark.parametrize(("dtype", "name"), [(bool, "nystrom"), (jnp.float32, "softmax")])
def test_exact_attention_in_linen_equals_flax_forward_and_gradient(rngs, dtype, name):
    x = normal(next(rngs), (B, L, E))
    mask = MASK[:, None, None].astype(dtype)
    variables = jax.jit(linen().init)(next(rngs), x)

    def run(function):
        loss = lambda variables, x: masked_sum(linen(function).apply(variables, x, mask=mask))
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(variables, x)

    ours, theirs = run(EXACT[name]), run(None)
    assert_close(ours[0], theirs[0], REFERENCE)
    jax.tree.map(lambda one, other: assert_close(one, other, REFERENCE), ours[1], theirs[1])


def test_grouped_heads_in_nnx_equal_flax(rngs):
    x = normal(next(rngs), (B, L, E))
    outputs = []
    for options in ({}, {"attention_fn": EXACT["nystrom"]}):
        module = nnx.MultiHeadAttention(
            6, E, num_kv_heads=2, decode=False, rngs=nnx.Rngs(0), **options
        )
        outputs.append(nnx.jit(lambda module, x: module(x, mask=MASK[:, None, None]))(module, x))
    assert_close(outputs[1][MASK], outputs[0][MASK], REFERENCE)


@pytest.mark.parametrize("batch", [(), (2, B)])
def test_equals_the_function_with_the_mask_of_each_example(rngs, batch):
    query, key, value = (normal(next(rngs), (*batch, L, H, 5)) for _ in range(3))
    mask = jnp.stack([MASK, MASK[::-1]])[(0,) * (2 - len(batch))]
    output = attention_fn("nystrom", num_landmarks=3)(
        query, key, value, mask=mask[..., None, None, :]
    )
    expected = nystrom_attention(query, key, value, num_landmarks=3, mask=mask)
    assert_close(output, expected, REFERENCE, where=mask)


def test_functions_of_equal_options_are_equal():
    """So that `jax.jit` does not trace a model again."""
    one, other = (attention_fn("nystrom", num_landmarks=3) for _ in range(2))
    assert (one, hash(one)) == (other, hash(other))
    assert one != attention_fn("softmax")


def test_queries_of_another_sequence_are_all_real(rngs):
    query, key, value = (normal(next(rngs), (B, L, H, 5)) for _ in range(3))
    real = jnp.ones((B, L), bool)
    cross = attention_fn("softmax", cross_attention=True)
    expected = softmax_attention(query, key, value, mask=MASK, query_mask=real)
    assert_close(cross(query, key, value, mask=MASK[:, None, None]), expected, REFERENCE)
    short = attention_fn("softmax")(query[:, :7], key, value, mask=MASK[:, None, None])
    assert_close(short, expected[:, :7], REFERENCE)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"mask": jnp.ones((B, 1, L, L), bool)}, r"\[\.\.\., 1, 1, T\]"),
        ({"mask": jnp.ones((B, H, 1, L), bool)}, r"\(3, 2, 1, 23\)"),
        ({"mask": jnp.ones((B, L), bool)}, r"mask\[:, None, None, :\]"),
        ({"mask": jnp.ones((1, B, 1, 1, L), bool)}, r"\(1, 3, 1, 1, 23\)"),
        ({"mask": jnp.ones((B + 1, 1, 1, L), bool)}, r"\(4, 1, 1, 23\)"),
        ({"mask": jnp.full((B, 1, 1, L), -1e9)}, "Additive"),
        ({"bias": jnp.zeros((B, 1, 1, L))}, "bias"),
        ({"dropout_rate": 0.1}, "dropout_rate=0"),
        ({"is_causal": True}, "padding masks"),
        ({"module": nn.Dense(1)}, "sow_weights=False"),
        ({"precision": "highest"}, r"jax\.default_matmul_precision"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "qk_attn_weights_einsum"),
    ],
)
def test_rejects_unsupported_arguments(rngs, arguments, word, no_annotations):
    x = normal(next(rngs), (B, L, H, 5))
    with pytest.raises(ValueError, match=word):
        attention_fn("nystrom", num_landmarks=3)(x, x, x, **arguments)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("nystrm", {}, "nystrom"),
        # They have parameters, which a function cannot hold,
        ("nystrom", {"conv_kernel_size": 3}, "SelfAttention"),
        ("nystrom", {"landmark_layout": "hf", "conv_kernel_size": 3}, "SelfAttention"),
        ("linformer", {"projection_size": 2}, "SelfAttention"),
        # draw random numbers,
        ("softmax", {"dropout_rate": 0.1}, "dropout_rate"),
        ("performer", {"redraw": True}, "redraw"),
        # or do not read the keys.
        ("reformer", {}, "key separately"),
        ("none", {}, "key separately"),
    ],
)
def test_rejects_attentions_that_are_no_functions_of_query_key_and_value(name, options, word):
    with pytest.raises(ValueError, match=word):
        attention_fn(name, **options)


def test_dropout_is_no_error_in_evaluation(rngs):
    x = normal(next(rngs), (B, L, H, 5))
    attend = attention_fn("softmax")
    output = attend(x, x, x, dropout_rate=0.1, deterministic=True)
    assert_close(output, attend(x, x, x), REFERENCE)
