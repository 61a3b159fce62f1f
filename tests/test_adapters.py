"""Flax's own attention Modules with this library's attention inside."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer_jax import attention_fn, nystrom_attention, softmax_attention
from tests.helpers import GRADIENT, REFERENCE, assert_close

B, L, E, H = 3, 23, 12, 2
MASK = jnp.arange(L)[None] < jnp.array([[L], [17], [5]])


def linen(function=None):
    options = {} if function is None else {"attention_fn": function}
    return nn.MultiHeadDotProductAttention(num_heads=H, **options)


def masked_sum(output):
    return (output * MASK[..., None] * jnp.arange(1.0, E + 1)[None, None]).sum()


@pytest.mark.parametrize("dtype", [bool, jnp.int32])
def test_softmax_in_linen_equals_flax_forward_and_gradient(rngs, dtype):
    x = jax.random.normal(next(rngs), (B, L, E))
    mask = MASK[:, None, None].astype(dtype)
    variables = linen().init(next(rngs), x)

    def run(function):
        loss = lambda variables, x: masked_sum(linen(function).apply(variables, x, mask=mask))
        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(variables, x)

    ours, theirs = run(attention_fn("softmax")), run(None)
    assert_close(ours[0], theirs[0], REFERENCE)
    jax.tree.map(lambda one, other: assert_close(one, other, GRADIENT), ours[1], theirs[1])


def test_softmax_in_nnx_equals_flax(rngs):
    x = jax.random.normal(next(rngs), (B, L, E))
    outputs = []
    for options in ({}, {"attention_fn": attention_fn("softmax")}):
        module = nnx.MultiHeadAttention(H, E, decode=False, rngs=nnx.Rngs(0), **options)
        outputs.append(module(x, mask=MASK[:, None, None]))
    assert_close(outputs[1][MASK], outputs[0][MASK], REFERENCE)


def test_grouped_heads_of_nnx_equal_flax(rngs):
    x = jax.random.normal(next(rngs), (B, L, E))
    outputs = []
    for options in ({}, {"attention_fn": attention_fn("nystrom", num_landmarks=L)}):
        module = nnx.MultiHeadAttention(
            6, E, num_kv_heads=2, decode=False, rngs=nnx.Rngs(0), **options
        )
        outputs.append(module(x, mask=MASK[:, None, None]))
    assert_close(outputs[1][MASK], outputs[0][MASK], REFERENCE)


def test_nystrom_is_exact_in_flax_with_few_tokens(rngs):
    x = jax.random.normal(next(rngs), (B, L, E))
    variables = linen().init(next(rngs), x)
    outputs = [
        linen(function).apply(variables, x, mask=MASK[:, None, None])
        for function in (None, attention_fn("nystrom", num_landmarks=L))
    ]
    assert_close(outputs[1][MASK], outputs[0][MASK], REFERENCE)


def test_layouts_of_equal_segments_run_in_flax(rngs):
    x = jax.random.normal(next(rngs), (B, 21, H, 5))
    options = {"num_landmarks": 3, "landmark_layout": "mlpen"}
    output = attention_fn("nystrom", **options)(x, x, x)
    assert_close(output, nystrom_attention(x, x, x, **options), REFERENCE)


@pytest.mark.parametrize("batch", [(), (B,), (2, B)])
def test_equals_the_function_with_any_leading_axes(rngs, batch):
    query, key, value = jax.random.normal(next(rngs), (3, *batch, L, H, 5))
    mask = MASK[:1] if batch == () else MASK  # [1 T]: broadcast over the batch
    output = attention_fn("nystrom", num_landmarks=3)(
        query, key, value, mask=mask[:, None, None][0]
    )
    flat = [x.reshape(-1, L, H, 5) for x in (query, key, value)]
    keys = jnp.broadcast_to(mask[:1], flat[0].shape[:2])
    expected = nystrom_attention(*flat, num_landmarks=3, mask=keys)
    assert output.shape == query.shape
    assert_close(output, expected.reshape(query.shape), REFERENCE)


def test_a_mask_of_each_example_reaches_its_example(rngs):
    query, key, value = jax.random.normal(next(rngs), (3, 2, B, L, H, 5))
    mask = jnp.stack([MASK, MASK[::-1]])
    output = attention_fn("nystrom", num_landmarks=3)(
        query, key, value, mask=mask[:, :, None, None]
    )
    for i in range(2):
        expected = nystrom_attention(query[i], key[i], value[i], num_landmarks=3, mask=mask[i])
        assert_close(output[i][mask[i]], expected[mask[i]], REFERENCE)


def test_queries_of_another_sequence_are_all_real(rngs):
    query, key, value = jax.random.normal(next(rngs), (3, B, L, H, 5))
    real = jnp.ones((B, L), bool)
    cross = attention_fn("softmax", cross_attention=True)
    expected = softmax_attention(query, key, value, mask=MASK, query_mask=real)
    assert_close(cross(query, key, value, mask=MASK[:, None, None]), expected, REFERENCE)
    short = attention_fn("softmax")(query[:, :7], key, value, mask=MASK[:, None, None])
    assert_close(short, expected[:, :7], REFERENCE)


def test_equal_functions_are_not_retraced(rngs):
    traces = []

    def apply(function, x):
        traces.append(function)
        return function(x, x, x)

    compiled = jax.jit(apply, static_argnums=0)
    x = jax.random.normal(next(rngs), (B, L, H, 5))
    for _ in range(2):
        compiled(attention_fn("nystrom", num_landmarks=3), x)
    assert len(traces) == 1
    assert attention_fn("nystrom") != attention_fn("softmax")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"mask": jnp.ones((B, 1, L, L), bool)},
            r"\[\.\.\., 1, 1, T\].* got shape \(3, 1, 23, 23\)",
        ),
        ({"mask": jnp.ones((B, H, 1, L), bool)}, r"got shape \(3, 2, 1, 23\)"),
        ({"mask": jnp.ones((B, L), bool)}, r"mask\[:, None, None, :\]"),
        ({"mask": jnp.ones((1, B, 1, 1, L), bool)}, r"got shape \(1, 3, 1, 1, 23\)"),
        ({"mask": jnp.ones((B, 1, 1, L))}, r"boolean or integer .* got float32"),
        ({"bias": jnp.zeros((B, 1, 1, L))}, "does not support bias"),
        ({"dropout_rate": 0.1}, r"cannot drop attention weights, got dropout_rate=0\.1"),
        ({"is_causal": True}, "cannot be causal"),
        ({"module": nn.Dense(1)}, "sow_weights=False"),
        ({"precision": "highest"}, r"jax\.default_matmul_precision"),
        ({"qk_attn_weights_einsum": jnp.einsum}, "does not support qk_attn_weights_einsum"),
    ],
)
def test_rejects_unsupported_arguments(rngs, arguments, words, no_annotations):
    x = jax.random.normal(next(rngs), (B, L, H, 5))
    with pytest.raises(ValueError, match=words):
        attention_fn("nystrom", num_landmarks=3)(x, x, x, **arguments)


def test_dropout_is_no_error_in_evaluation(rngs):
    x = jax.random.normal(next(rngs), (B, L, H, 5))
    attend = attention_fn("softmax")
    output = attend(x, x, x, dropout_rate=0.1, deterministic=True)
    assert_close(output, attend(x, x, x), REFERENCE)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("nystrom", {"conv_kernel_size": 3}),
        ("nystrom", {"landmark_layout": "hf", "conv_kernel_size": 3}),
        ("linformer", {"projection_size": 2}),
    ],
)
def test_rejects_attentions_with_parameters(name, options):
    with pytest.raises(ValueError, match=r"has parameters, .* use SelfAttention"):
        attention_fn(name, **options)


def test_rejects_unknown_names():
    with pytest.raises(ValueError, match="did you mean nystrom"):
        attention_fn("nystrm")


@pytest.mark.parametrize("name", ["linear", "longformer", "performer", "reformer"])
def test_other_attentions_run_in_flax(rngs, name):
    x = jax.random.normal(next(rngs), (B, L, E))
    module = linen(attention_fn(name))
    output = module.apply(module.init(next(rngs), x), x, mask=MASK[:, None, None])
    assert jnp.isfinite(output[MASK]).all()
