import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer_jax.attention import nystrom_attention
from nystromformer_jax.cores import make_core
from nystromformer_jax.dropout import Dropout
from nystromformer_jax.modules import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    SelfAttention,
    over_tokens,
)
from tests.helpers import GRADIENT, REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths

NYSTROM = make_core("nystrom", num_landmarks=5, conv_kernel_size=3)
BATCH, LENGTH, WIDTH = 2, 23, 12


def init(module, rng, *inputs):
    """Parameters, compiled as a whole."""
    return jax.jit(functools.partial(module.init, deterministic=True))(rng, *inputs)


def parameters(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_over_tokens_is_the_layer_itself(rngs):
    x = jax.random.normal(next(rngs), (2, 7, 3))
    layer = nn.Dense(5)
    variables = layer.init(next(rngs), x)
    flattened = lambda variables, x: nn.apply(over_tokens, layer)(variables, x)
    assert_close(flattened(variables, x), layer.apply(variables, x), SAME_ARITHMETIC)


def test_self_attention_is_projections_around_the_function(rngs):
    x = jax.random.normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = mask_of_lengths([23, 11], LENGTH)
    module = SelfAttention(2, NYSTROM)
    variables = init(module, next(rngs), x, mask)
    weights = variables["params"]

    def project(name, x):
        return x @ weights[name]["kernel"] + weights[name]["bias"][None, None]

    heads = (BATCH, LENGTH, 2, WIDTH // 2)
    attended = nystrom_attention(
        *(project(name, x).reshape(heads) for name in ("query", "key", "value")),
        num_landmarks=5,
        mask=mask,
        conv_kernel=weights["core"]["conv_kernel"],
    )
    expected = project("out", attended.reshape(BATCH, LENGTH, WIDTH))
    actual = module.apply(variables, x, mask, deterministic=True)
    assert_close(actual, expected, REFERENCE, where=mask)


def test_layers_do_not_share_their_attentions_parameters(rngs):
    x = jnp.ones((1, LENGTH, WIDTH))
    encoder = Encoder(3, functools.partial(EncoderBlock, 2, NYSTROM, 7))
    weights = init(encoder, next(rngs), x)["params"]
    kernels = [weights[f"layer_{i}"]["attention"]["core"]["conv_kernel"] for i in range(3)]
    assert (kernels[0] != kernels[1]).any()
    assert (kernels[1] != kernels[2]).any()


def test_a_pre_norm_block_has_the_parameters_of_its_formula(rngs):
    block = EncoderBlock(2, NYSTROM, 7)
    x = jnp.ones((1, LENGTH, WIDTH))
    weights = jax.eval_shape(lambda: init(block, next(rngs), x))["params"]
    attention = 4 * (WIDTH * WIDTH + WIDTH) + 2 * 3
    mlp = WIDTH * 7 + 7 + 7 * WIDTH + WIDTH
    assert parameters(weights) == attention + mlp + 2 * 2 * WIDTH


def test_pre_norm_and_post_norm_are_what_they_say(rngs):
    x = jax.random.normal(next(rngs), (BATCH, LENGTH, WIDTH))

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    for kind in ("pre", "post"):
        block = EncoderBlock(2, NYSTROM, 7, norm=kind)
        variables = init(block, next(rngs), x)  # layer norms start at one, zero
        weights = variables["params"]
        attend = lambda x, w=weights: SelfAttention(2, NYSTROM).apply(
            {"params": w["attention"]}, x, deterministic=True
        )
        mlp = lambda x, w=weights: MlpBlock(7).apply({"params": w["mlp"]}, x, deterministic=True)
        if kind == "pre":
            middle = x + attend(norm(x))
            expected = middle + mlp(norm(middle))
        else:
            middle = norm(x + attend(x))
            expected = norm(middle + mlp(middle))
        assert_close(block.apply(variables, x, deterministic=True), expected, REFERENCE)


def test_the_encoders_output_at_real_tokens_ignores_padding(rngs):
    x = jax.random.normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = mask_of_lengths([23, 11], LENGTH)
    encoder = Encoder(2, functools.partial(EncoderBlock, 2, NYSTROM, 7))
    variables = init(encoder, next(rngs), x, mask)

    def total(variables, x, mask):
        output = encoder.apply(variables, x, mask, deterministic=True)
        return (output**2 * mask[..., None]).sum()

    padded = jnp.pad(x, ((0, 0), (0, 9), (0, 0)), constant_values=100.0)
    compiled = jax.jit(jax.value_and_grad(total))
    expected = compiled(variables, x, mask)
    actual = compiled(variables, padded, jnp.pad(mask, ((0, 0), (0, 9))))
    assert_close(actual[0], expected[0], REFERENCE)
    assert_close(actual[1], expected[1], GRADIENT)


def test_dropout_falls_on_the_attention_output_and_twice_in_the_mlp(rngs):
    x = jnp.ones((1, 4, WIDTH))
    block = EncoderBlock(2, NYSTROM, 7, dropout_rate=0.5)
    variables = init(block, next(rngs), x)
    dropped = []

    def spy(call, args, kwargs, context):
        if isinstance(context.module, Dropout) and not kwargs["deterministic"]:
            dropped.append(args[0].shape)
        return call(*args, **kwargs)

    with nn.intercept_methods(spy):
        block.apply(variables, x, deterministic=False, rngs={"dropout": next(rngs)})
    assert dropped == [(1, 4, WIDTH), (1, 4, 7), (1, 4, WIDTH)]


def test_half_precision_activations_keep_float32_parameters(rngs):
    x = jnp.ones((1, LENGTH, WIDTH), jnp.bfloat16)
    block = EncoderBlock(2, NYSTROM, 7, dtype=jnp.bfloat16)
    variables = init(block, next(rngs), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert block.apply(variables, x, deterministic=True).dtype == jnp.bfloat16


def test_a_core_whose_keys_are_its_queries_does_not_cross(rngs):
    layer = MultiHeadAttention(2, make_core("reformer", chunk_len=4))
    x, y = (jax.random.normal(next(rngs), (2, 13, 6)) for _ in range(2))
    for other in (x, y):  # under jit nobody can tell x from y
        with pytest.raises(ValueError, match="attends within one sequence: pass inputs_kv=None"):
            layer.init(next(rngs), x, other, deterministic=True)
    layer.init(next(rngs), x, deterministic=True)


def test_an_output_of_no_width_is_refused(rngs):
    layer = MultiHeadAttention(2, make_core("softmax"), out_features=0)
    with pytest.raises(ValueError, match="out_features must be a whole number from 1 on, got 0"):
        layer.init(next(rngs), jnp.ones((2, 5, 6)), deterministic=True)


def test_heads_that_do_not_divide_the_width_are_refused(rngs):
    with pytest.raises(ValueError, match="multiple of num_heads, got 12 and 5"):
        SelfAttention(5, NYSTROM).init(next(rngs), jnp.ones((1, 7, 12)), deterministic=True)


def test_softmax_attention_is_flaxs_with_flaxs_own_parameters(rngs):
    """Cross-attention from 23 queries to 17 keys of another width, under both masks."""
    queries = jax.random.normal(next(rngs), (BATCH, LENGTH, WIDTH))
    keys = jax.random.normal(next(rngs), (BATCH, 17, 9))
    mask = mask_of_lengths([17, 5], 17)
    options = {"num_heads": 2, "qkv_features": 8, "out_features": 3, "use_bias": True}
    theirs = nn.MultiHeadDotProductAttention(**options)
    variables = theirs.init(next(rngs), queries, keys, keys)
    expected = theirs.apply(variables, queries, keys, keys, mask=mask[:, None, None])
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim == 3 else leaf.reshape(-1),
        {"out": variables["params"]["out"]},
    )
    for name in ("query", "key", "value"):
        weights = variables["params"][name]
        flat[name] = {
            "kernel": weights["kernel"].reshape(weights["kernel"].shape[0], -1),
            "bias": weights["bias"].reshape(-1),
        }
    ours = MultiHeadAttention(make_core=make_core("softmax"), **options)
    query_mask = jnp.ones((BATCH, LENGTH), bool)
    actual = ours.apply({"params": flat}, queries, keys, mask, query_mask, deterministic=True)
    assert_close(actual, expected, REFERENCE)


def test_an_encoder_becomes_a_module_of_nnx_with_all_its_parameters(rngs):
    block = functools.partial(EncoderBlock, 2, make_core("nystrom", num_landmarks=3), 7)
    encoder, x = Encoder(2, block), jax.random.normal(next(rngs), (BATCH, LENGTH, 6))
    bridged = nnx.bridge.ToNNX(encoder, rngs=nnx.Rngs(0))
    nnx.bridge.lazy_init(bridged, x[:, :1], deterministic=True)
    own = jax.eval_shape(functools.partial(encoder.init, deterministic=True), next(rngs), x)
    assert parameters(nnx.state(bridged, nnx.Param)) == parameters(own)
