"""Native NNX layers compared with the linen layers."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import nystromformer_jax.nnx as native
from nystromformer_jax import Encoder, EncoderBlock, MultiHeadAttention, make_core
from nystromformer_jax.cores import CORES
from tests import helpers
from tests.cores.test_contract import OPTIONS
from tests.helpers import HALF, REFERENCE, SAME_ARITHMETIC, assert_close, mask_of_lengths, normal

B, L, H, E, F = 2, 23, 2, 6, 7
MASK = mask_of_lengths([L, 11], L)


def random_variables(module, *inputs):
    """Random values for all parameters, as initial biases of zero would hide errors."""
    return helpers.random_variables(jax.random.key(0), module, *inputs)


def as_function(module):
    """The module as a function of linen variables, to differentiate it like a linen module."""
    graph, state = nnx.split(module)

    def apply(variables, *arguments, **options):
        merged = nnx.merge(graph, state, copy=True)
        native.load_linen(merged, variables)
        return merged(*arguments, **options, deterministic=True)

    return apply


# Besides the defaults, which all other cores have.
BLOCK_OPTIONS = {
    "nystrom": {
        "norm": "post",
        "activation": "relu",
        "qkv_features": 10,
        "attention_bias": False,
        "layer_norm_epsilon": 0.1,
    }
}


@pytest.mark.slow_except("nystrom")
@pytest.mark.parametrize("name", CORES)
def test_a_block_with_any_core_equals_linen_forward_and_gradient(name, rngs):
    make, options = make_core(name, **OPTIONS[name]), BLOCK_OPTIONS.get(name, {})
    linen = EncoderBlock(H, make, F, **options)
    block = native.EncoderBlock(H, E, make, F, **options, rngs=nnx.Rngs(0))
    x = normal(next(rngs), (B, L, E))
    variables = random_variables(linen, x)

    def run(apply, variables):
        def total(variables):
            output = apply(variables, jnp.where(MASK[..., None], x, jnp.nan), MASK)
            output = jnp.where(MASK[..., None], output, 0)
            return (output**2).sum(), output

        return jax.value_and_grad(total, has_aux=True)(variables)

    expected = jax.jit(functools.partial(run, functools.partial(linen.apply, deterministic=True)))
    (_, output), gradient = jax.jit(functools.partial(run, as_function(block)))(variables)
    (_, expected_output), expected_gradient = expected(variables)
    assert_close(output, expected_output, SAME_ARITHMETIC)
    assert_close(gradient, expected_gradient, SAME_ARITHMETIC)
    native.load_linen(block, variables)
    assert_close(native.to_linen(block), variables, SAME_ARITHMETIC)


def test_a_block_in_half_precision_on_a_float32_stream_equals_linen(rngs):
    """Layer norms read the stream in float32; rounded first, tokens with a large mean would be equal."""
    make, options = make_core("softmax"), {"dtype": jnp.bfloat16}
    linen = EncoderBlock(H, make, F, **options)
    block = native.EncoderBlock(H, E, make, F, **options, rngs=nnx.Rngs(0))
    x = 100 + normal(next(rngs), (B, L, E))
    variables = random_variables(linen, x)
    native.load_linen(block, variables)
    expected = jax.jit(functools.partial(linen.apply, deterministic=True))(variables, x)
    actual = nnx.jit(functools.partial(type(block).__call__, deterministic=True))(block, x)
    assert actual.dtype == expected.dtype
    assert_close(actual - 100, expected - 100, HALF)


def test_a_block_passes_its_options_to_its_layers():
    rates = {"dropout_rate": 0.3, "hidden_dropout_rate": 0.0}  # zero is a rate, too
    options = {"dtype": jnp.float16, "param_dtype": jnp.bfloat16, "precision": "highest"}
    options["kernel_init"] = nnx.initializers.constant(2.0)
    options["bias_init"] = nnx.initializers.constant(3.0)
    block = native.EncoderBlock(H, E, make_core("softmax"), F, **rates, **options, rngs=nnx.Rngs(0))
    assert block.attention_dropout.rate == block.mlp.output_dropout.rate == 0.3
    assert block.mlp.hidden_dropout.rate == 0
    layers = [module for _, module in nnx.iter_modules(block) if isinstance(module, nnx.Linear)]
    assert len(layers) == 6
    for layer in layers:
        assert (layer.kernel[...] == 2).all()
        assert (layer.bias[...] == 3).all()
        assert (layer.precision, layer.dtype) == ("highest", jnp.float16)
    params = jax.tree.leaves(nnx.state(block, nnx.Param))
    assert {leaf.dtype for leaf in params} == {jnp.dtype("bfloat16")}


def test_output_projection_may_have_other_initializers():
    inits = {"kernel_init": 2.0, "bias_init": 3.0, "out_kernel_init": 5.0, "out_bias_init": 7.0}
    options = {name: nnx.initializers.constant(value) for name, value in inits.items()}
    layer = native.SelfAttention(H, E, make_core("softmax"), **options, rngs=nnx.Rngs(0))
    for projection, kernel, bias in ((layer.value, 2, 3), (layer.out, 5, 7)):
        assert (projection.kernel[...] == kernel).all()
        assert (projection.bias[...] == bias).all()


def test_cross_attention_from_keys_and_values_equals_linen(rngs):
    make = make_core("linear")
    options = {"qkv_features": 10, "out_features": 3, "use_bias": False, "normalize_qk": True}
    options["transform_qk"] = lambda x: 2 * x
    linen = MultiHeadAttention(H, make, **options)
    layer = native.MultiHeadAttention(H, E, make, in_kv_features=5, **options, rngs=nnx.Rngs(0))
    queries = normal(next(rngs), (B, L, E))
    keys, values = (normal(next(rngs), (B, 17, 5)) for _ in range(2))
    variables = random_variables(linen, queries, keys)
    masks = {"mask": mask_of_lengths([17, 3], 17), "query_mask": MASK}
    inputs = {"inputs_k": keys, "inputs_v": values} | masks

    @jax.jit
    def both(variables):
        expected = linen.apply(variables, queries, **inputs, deterministic=True)
        return as_function(layer)(variables, queries, **inputs), expected

    actual, expected = both(variables)
    assert actual.shape == (B, L, 3)
    assert_close(actual, expected, SAME_ARITHMETIC, where=MASK)


def test_random_features_of_a_layer_name_are_those_of_this_layer_in_linen(rngs):
    make = make_core("performer", num_features=3)
    encoder = Encoder(2, functools.partial(EncoderBlock, H, make, F), make_final_norm=None)
    x = normal(next(rngs), (B, L, E))
    variables = random_variables(encoder, x)
    names = [f"layer_{i}/attention/core" for i in range(2)]
    makers = [make_core("performer", num_features=3, layer_name=name) for name in names]
    blocks = [as_function(native.EncoderBlock(H, E, own, F, rngs=nnx.Rngs(0))) for own in makers]

    @jax.jit
    def both(variables, x):
        expected = encoder.apply(variables, x, deterministic=True)
        for i, block in enumerate(blocks):
            x = block({"params": variables["params"][f"layer_{i}"]}, x)
        return x, expected

    assert_close(*both(variables, x), REFERENCE)


def test_dropout_follows_the_mode_and_the_arguments_of_a_call(rngs):
    make = make_core("softmax", dropout_rate=0.5)
    block = native.EncoderBlock(H, E, make, F, dropout_rate=0.5, rngs=nnx.Rngs(0))
    x = normal(next(rngs), (1, 5, E))

    @nnx.jit
    def calls(block, x):
        given = [block(x, rngs=nnx.Rngs(dropout=3)), block(x, rngs=nnx.Rngs(dropout=3).dropout)]
        of_core = block.attention(x), block.attention(x)
        return [block(x), block(x)], of_core, given, block(x, deterministic=True)

    *pairs, given, still = calls(block, x)
    assert all((one != two).any() for one, two in pairs)
    assert (given[0] == given[1]).all()
    block.eval()
    own, _, given, evaluated = calls(block, x)
    assert_close([*own, *given, evaluated], 5 * [still], REFERENCE)
    block.train()
    assert not block.attention.core.deterministic
    assert "deterministic" in nnx.view_info(block)
    assert nnx.view(block, deterministic=True).attention.core.deterministic


def test_shapes_of_the_parameters_of_a_core_need_no_input():
    for name, options, shape in (
        ("linformer", {"max_len": 11}, (H, 256, 11)),
        ("nystrom", {"landmark_layout": "hf", "conv_kernel_size": 3}, (H, 3)),
    ):
        layer = native.SelfAttention(H, E, make_core(name, **options), rngs=nnx.Rngs(0))
        (parameter,) = jax.tree.leaves(nnx.state(layer.core, nnx.Param))
        assert parameter.shape == shape


def test_only_layers_that_draw_have_random_state():
    for name, draws in (("nystrom", False), ("reformer", True), ("performer", False)):
        layer = native.SelfAttention(H, E, make_core(name), rngs=nnx.Rngs(0))
        assert bool(nnx.state(layer, nnx.RngState)) == draws


class ValueCore(nn.Module):
    """A core that is not an `AttentionCore`; whether it draws random numbers is unknown."""

    @nn.compact
    def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
        return value if deterministic or not self.has_rng("dropout") else 2 * value


def test_another_core_gets_the_dropout_stream_if_there_is_one(rngs):
    x = normal(next(rngs), (1, 7, 6))
    without, with_stream = (
        native.SelfAttention(2, 6, ValueCore, rngs=nnx.Rngs(params=0, **streams))(x)
        for streams in ({}, {"dropout": 1})
    )
    assert_close(with_stream, 2 * without, REFERENCE)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p | {"extra": {"w": 1.0}}, "unexpected parameters extra/w"),
        (lambda p: p | {"key": {}}, "lack the parameters key/bias, key/kernel"),
        (lambda p: p | {"out": p["out"] | {"bias": jnp.ones(5)}}, "out/bias"),
        (lambda p: p | {"out": p["out"] | {"bias": jnp.ones(E, int)}}, "int32"),
    ],
)
def test_load_linen_names_the_wrong_parameter(change, word):
    layer = native.SelfAttention(H, E, make_core("softmax"), rngs=nnx.Rngs(0))
    variables = native.to_linen(layer)
    with pytest.raises(ValueError, match=word):
        native.load_linen(layer, {"params": change(variables["params"])})
    with pytest.raises(ValueError, match='"params"'):
        native.load_linen(layer, variables["params"])


def test_a_source_of_random_numbers_is_no_key(no_annotations):
    dropout = native.Dropout(0.5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"nnx\.Rngs\(key\)"):
        dropout(jnp.ones((1, L, E)), rngs=jax.random.key(0))


@pytest.mark.parametrize(
    ("make", "width", "word"),
    [
        (make_core("nystrom"), E - 1, "6 features"),
        (make_core("linformer"), E, "max_len"),
        ("nystrom", E, "factory"),
    ],
)
def test_rejects_other_widths_and_invalid_factories(no_annotations, make, width, word):
    with pytest.raises(ValueError, match=word):
        native.SelfAttention(H, E, make, rngs=nnx.Rngs(0))(jnp.ones((B, L, width)))
