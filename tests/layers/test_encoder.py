import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nystromformer_jax.attention.convolution import depthwise_convolution
from nystromformer_jax.attention.functions import nystrom_attention
from nystromformer_jax.cores import CoreFactory, make_core
from nystromformer_jax.layers.adapters import AttentionFn
from nystromformer_jax.layers.encoder import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    SelfAttention,
    over_tokens,
)
from nystromformer_jax.layers.gated_ema import GatedEmaBlock
from nystromformer_jax.layers.stem import ConvStem
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    dropped_shapes,
    mask_of_lengths,
    normal,
    random_variables,
)

NYSTROM = make_core("nystrom", num_landmarks=5, conv_kernel_size=3)
BATCH, LENGTH, WIDTH = 2, 23, 12


def init(module, rng, *inputs):
    """Parameters, compiled as a whole."""
    return jax.jit(functools.partial(module.init, deterministic=True))(rng, *inputs)


def apply(module, variables, *inputs, **named):
    """The output, compiled as a whole."""
    return jax.jit(functools.partial(module.apply, **named))(variables, *inputs)


def parameters(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_over_tokens_equals_the_layer(rngs):
    x = normal(next(rngs), (2, 7, 3))
    layer = nn.Dense(5)
    variables = layer.init(next(rngs), x)
    flattened = lambda variables, x: nn.apply(over_tokens, layer)(variables, x)
    assert_close(flattened(variables, x), layer.apply(variables, x), SAME_ARITHMETIC)


def test_self_attention_equals_projections_and_the_function(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = mask_of_lengths([23, 11], LENGTH)
    module = SelfAttention(2, NYSTROM)
    variables = random_variables(next(rngs), module, x, mask)

    @jax.jit
    def formula(weights, x):
        def project(name, x):
            return x @ weights[name]["kernel"] + weights[name]["bias"][None, None]

        heads = (BATCH, LENGTH, 2, WIDTH // 2)
        attended = nystrom_attention(
            *(project(name, x).reshape(heads) for name in ("query", "key", "value")),
            num_landmarks=5,
            mask=mask,
            conv_kernel=weights["core"]["conv_kernel"],
        )
        return project("out", attended.reshape(BATCH, LENGTH, WIDTH))

    expected = formula(variables["params"], x)
    actual = apply(module, variables, x, mask, deterministic=True)
    assert_close(actual, expected, REFERENCE, where=mask)


def test_layers_have_separate_attention_parameters(rngs):
    x = jnp.ones((1, LENGTH, WIDTH))
    encoder = Encoder(2, functools.partial(EncoderBlock, 2, NYSTROM, 7))
    weights = init(encoder, next(rngs), x)["params"]
    kernels = [weights[f"layer_{i}"]["attention"]["core"]["conv_kernel"] for i in range(2)]
    assert (kernels[0] != kernels[1]).any()


def test_a_pre_norm_block_has_the_parameters_of_its_formula(rngs):
    block = EncoderBlock(2, NYSTROM, 7)
    x = jnp.ones((1, LENGTH, WIDTH))
    weights = jax.eval_shape(lambda: init(block, next(rngs), x))["params"]
    attention = 4 * (WIDTH * WIDTH + WIDTH) + 2 * 3
    mlp = WIDTH * 7 + 7 + 7 * WIDTH + WIDTH
    assert parameters(weights) == attention + mlp + 2 * 2 * WIDTH


def test_pre_norm_and_post_norm_equal_their_formulas(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)

    for kind in ("pre", "post"):
        block = EncoderBlock(2, NYSTROM, 7, norm=kind)
        variables = init(block, next(rngs), x)  # layer norms start at one and zero

        @jax.jit
        def formula(weights, x, kind=kind):
            attend = lambda x: SelfAttention(2, NYSTROM).apply(
                {"params": weights["attention"]}, x, deterministic=True
            )
            mlp = lambda x: MlpBlock(7).apply({"params": weights["mlp"]}, x, deterministic=True)
            if kind == "pre":
                middle = x + attend(norm(x))
                return middle + mlp(norm(middle))
            middle = norm(x + attend(x))
            return norm(middle + mlp(middle))

        expected = formula(variables["params"], x)
        assert_close(apply(block, variables, x, deterministic=True), expected, REFERENCE)


@pytest.mark.slow(minutes=0.1)
def test_encoder_output_ignores_padding(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
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
    assert_close(actual[1], expected[1], REFERENCE)


def test_dropout_applies_to_the_attention_output_and_twice_in_the_mlp(rngs):
    x = jnp.ones((1, 4, WIDTH))
    block = EncoderBlock(2, NYSTROM, 7, dropout_rate=0.5)
    variables = random_variables(next(rngs), block, x)
    assert dropped_shapes(block, variables, x) == [(1, 4, WIDTH), (1, 4, 7), (1, 4, WIDTH)]


def test_half_precision_activations_keep_float32_parameters(rngs):
    x = jnp.ones((1, LENGTH, WIDTH), jnp.bfloat16)
    block = EncoderBlock(2, NYSTROM, 7, dtype=jnp.bfloat16)
    variables = random_variables(next(rngs), block, x)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    run = functools.partial(block.apply, deterministic=True)
    assert jax.eval_shape(run, variables, x).dtype == jnp.bfloat16


@pytest.mark.parametrize(("name", "options"), [("reformer", {"chunk_len": 4}), ("none", {})])
def test_rejects_cross_attention_for_cores_without_keys(rngs, name, options):
    layer = MultiHeadAttention(2, make_core(name, **options))
    x, y = (normal(next(rngs), (2, 13, 6)) for _ in range(2))
    for other in (x, y):  # under jit x and y cannot be distinguished
        with pytest.raises(ValueError, match=r"self-attention only: .* Pass inputs_kv=None"):
            layer.init(next(rngs), x, other, deterministic=True)
    jax.eval_shape(functools.partial(layer.init, deterministic=True), next(rngs), x)


def test_attention_none_projects_only_the_value(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = mask_of_lengths([23, 11], LENGTH)
    module = SelfAttention(2, make_core("none", conv_kernel_size=3))
    variables = random_variables(next(rngs), module, x, mask)
    weights = variables["params"]
    assert weights.keys() == {"value", "core", "out"}

    @jax.jit
    def formula(weights, x):
        value = x @ weights["value"]["kernel"] + weights["value"]["bias"][None, None]
        value = jnp.where(mask[..., None], value, 0).reshape(BATCH, LENGTH, 2, WIDTH // 2)
        convolved = depthwise_convolution(value, weights["core"]["conv_kernel"])
        output = convolved.reshape(x.shape) @ weights["out"]["kernel"]
        return output + weights["out"]["bias"][None, None]

    actual = apply(module, variables, x, mask, deterministic=True)
    assert_close(actual, formula(weights, x), REFERENCE)


def test_rejects_zero_out_features(rngs):
    layer = MultiHeadAttention(2, make_core("softmax"), out_features=0)
    with pytest.raises(ValueError, match="out_features must be an integer of at least 1, got 0"):
        layer.init(next(rngs), jnp.ones((2, 5, 6)), deterministic=True)


def test_rejects_heads_that_do_not_divide_the_width(rngs):
    with pytest.raises(ValueError, match="multiple of num_heads, got 12 and 5"):
        SelfAttention(5, NYSTROM).init(next(rngs), jnp.ones((1, 7, 12)), deterministic=True)


@pytest.mark.parametrize("normalize_qk", [False, True])
@pytest.mark.slow_except("True")
def test_softmax_attention_equals_that_of_flax(rngs, normalize_qk):
    """Cross-attention from 23 queries to 17 keys and values of another width, under both masks."""
    queries = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    keys, values = (normal(next(rngs), (BATCH, 17, 9)) for _ in range(2))
    mask = mask_of_lengths([17, 5], 17)
    options = {"num_heads": 2, "qkv_features": 8, "out_features": 3, "use_bias": True}
    options["normalize_qk"] = normalize_qk
    theirs = nn.MultiHeadDotProductAttention(**options)
    variables = jax.jit(theirs.init)(next(rngs), queries, keys, values)
    norms = {name: leaf for name, leaf in variables["params"].items() if name.endswith("_ln")}
    norms = jax.tree.map(lambda scale: scale * jnp.arange(1.0, 5.0), norms)
    variables["params"].update(norms)
    attend = functools.partial(apply, theirs, variables, queries, mask=mask[:, None, None])
    flat = jax.tree.map(
        lambda leaf: leaf.reshape(-1, leaf.shape[-1]) if leaf.ndim == 3 else leaf.reshape(-1),
        {"out": variables["params"]["out"]},
    )
    flat.update(norms)
    for name in ("query", "key", "value"):
        weights = variables["params"][name]
        flat[name] = {
            "kernel": weights["kernel"].reshape(weights["kernel"].shape[0], -1),
            "bias": weights["bias"].reshape(-1),
        }
    ours = MultiHeadAttention(make_core=make_core("softmax"), **options)
    query_mask = jnp.ones((BATCH, LENGTH), bool)
    options = {"mask": mask, "query_mask": query_mask, "deterministic": True}
    run = functools.partial(apply, ours, {"params": flat}, queries, **options)
    assert_close(run(keys), attend(keys), REFERENCE)
    assert_close(run(inputs_k=keys), attend(keys), REFERENCE)
    assert_close(run(inputs_k=keys, inputs_v=values), attend(keys, values), REFERENCE)


def test_output_projection_has_its_own_initializers(rngs):
    inits = {"kernel": nn.initializers.zeros_init(), "bias": nn.initializers.ones_init()}
    options = {f"out_{name}_init": init for name, init in inits.items()}
    layer = MultiHeadAttention(2, make_core("softmax"), **options)
    run = jax.jit(functools.partial(layer.init_with_output, deterministic=True))
    output, variables = run(next(rngs), jnp.ones((1, LENGTH, WIDTH)))
    assert (output == 1).all()
    assert variables["params"]["value"]["kernel"].any()


def test_queries_and_keys_are_transformed_after_the_normalization(rngs):
    """Doubling query and key equals doubling the scales of their layer norms."""
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    make = functools.partial(SelfAttention, 2, make_core("softmax"), normalize_qk=True)
    variables = random_variables(next(rngs), make(), x)
    params = variables["params"]
    doubled = {name: {"scale": 2 * params[name]["scale"]} for name in ("query_ln", "key_ln")}
    run = functools.partial(apply, deterministic=True)
    expected = run(make(), {"params": {**params, **doubled}}, x)
    twice = run(make(transform_qk=lambda x: 2 * x), variables, x)
    assert_close(twice, expected, REFERENCE)
    assert jnp.abs(expected - run(make(), variables, x)).max() > 0.01


def test_rejects_the_argument_order_of_flax_and_double_inputs(rngs, no_annotations):
    x = jnp.ones((BATCH, LENGTH, WIDTH))
    layer = MultiHeadAttention(2, make_core("softmax"))
    for arguments, named, sentence in (
        (
            (x, x, x),
            {},
            r"got float32 of shape \(2, 23, 12\)\. .* pass inputs_k and inputs_v by name",
        ),
        ((x, x), {"inputs_v": x}, r"pass it alone, or pass inputs_k and inputs_v by name"),
        ((x,), {"inputs_v": x}, r"inputs_v needs inputs_k"),
        ((x,), {"inputs_k": x, "inputs_v": x[0]}, r"inputs_v must be a non-empty array"),
        (
            (x,),
            {"inputs_k": x, "inputs_v": x[:, :5]},
            r"must have the same batch and length, got shapes \(2, 23, 12\) and \(2, 5, 12\)",
        ),
    ):
        with pytest.raises(ValueError, match=sentence):
            layer.init(next(rngs), *arguments, **named, deterministic=True)


def test_cross_attention_with_a_mask_needs_a_query_mask(rngs, no_annotations):
    x, mask = jnp.ones((BATCH, LENGTH, WIDTH)), jnp.ones((BATCH, LENGTH), bool)
    layer = MultiHeadAttention(2, make_core("softmax"))
    for arguments, named, sentence in (
        ((x, x, mask), {}, r"pass query_mask \[B L\] .* leave out inputs_kv and inputs_k"),
        ((x,), {"inputs_k": x, "mask": mask}, r"pass query_mask \[B L\]"),
        ((x, x, mask[:, None, None]), {}, "Only padding masks are supported"),
    ):
        with pytest.raises(ValueError, match=sentence):
            layer.init(next(rngs), *arguments, **named, deterministic=True)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
    "module",
    [
        EncoderBlock(2, make_core("none"), 7, deterministic=True),
        GatedEmaBlock(2, make_core("none"), 7, num_states=0, deterministic=True),
        ConvStem((3, 3)),
    ],
)
def test_precision_is_that_of_all_products(rngs, module, platform):
    module, x = module.copy(precision="highest"), normal(next(rngs), (2, 13, 6))
    variables = jax.jit(module.init)(next(rngs), x)
    traced = jax.jit(module.apply).trace(variables, x)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"stablehlo\.(?:dot_general|convolution).*", program)
    assert len(products) >= 2
    assert all(re.search("HIGHEST.*HIGHEST", product) for product in products)


@pytest.mark.slow(minutes=0.1)
def test_an_encoder_converts_to_nnx_with_all_parameters(rngs):
    block = functools.partial(EncoderBlock, 2, make_core("nystrom", num_landmarks=3), 7)
    encoder, x = Encoder(2, block), normal(next(rngs), (BATCH, LENGTH, 6))
    bridged = nnx.bridge.ToNNX(encoder, rngs=nnx.Rngs(0))
    nnx.bridge.lazy_init(bridged, x[:, :1], deterministic=True)
    own = jax.eval_shape(functools.partial(encoder.init, deterministic=True), next(rngs), x)
    assert parameters(nnx.state(bridged, nnx.Param)) == parameters(own)


class OfPair(MultiHeadAttention):
    """Self-attention, called with the tokens as queries and as keys."""

    def __call__(self, x, mask, *, deterministic):
        return super().__call__(x, x, mask, mask, deterministic=deterministic)


class OfThree(MultiHeadAttention):
    """The same with separate inputs for queries, keys and values."""

    def __call__(self, x, mask, *, deterministic):
        inputs = {"inputs_k": x, "inputs_v": 2 * x}
        return super().__call__(x, None, mask, mask, **inputs, deterministic=deterministic)


@pytest.mark.slow_except("attention", "of a pair", "of three")
@pytest.mark.parametrize("name", ["attention", "of a pair", "of three", "block", "stem"])
def test_parameter_gradients_ignore_padding(rngs, name):
    make = make_core("nystrom", num_landmarks=3, conv_kernel_size=3)
    module, options = {
        "attention": (SelfAttention(2, make), {"deterministic": True}),
        "of a pair": (OfPair(2, make), {"deterministic": True}),
        "of three": (OfThree(2, make_core("nystrom", num_landmarks=3)), {"deterministic": True}),
        "block": (EncoderBlock(2, make, 7), {"deterministic": True}),
        "stem": (ConvStem((3,)), {}),
    }[name]
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = mask_of_lengths([LENGTH, 11], LENGTH)
    variables = jax.jit(functools.partial(module.init, **options))(next(rngs), x, mask)

    @jax.jit
    @jax.grad
    def gradient(variables, filler):
        filled = jnp.where(mask[..., None], x, filler)
        squares = module.apply(variables, filled, mask, **options) ** 2
        return jnp.where(mask[..., None], squares, 0).sum()

    expected = gradient(variables, 0.0)
    for filler in (jnp.nan, jnp.inf):
        assert_close(gradient(variables, filler), expected, SAME_ARITHMETIC)


def test_modules_with_equal_factories_are_traced_once(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def apply(module, variables, x):
        traces.append(module)
        return module.apply(variables, x, deterministic=True)

    make = lambda: SelfAttention(2, make_core("nystrom", num_landmarks=3))
    variables = random_variables(next(rngs), make(), x)
    for _ in range(3):
        apply(make(), variables, x)
    assert len(traces) == 1


@pytest.mark.parametrize("make", ["nystrom", None, make_core("softmax")()])
def test_rejects_an_invalid_factory(rngs, no_annotations, make):
    x = jnp.ones((BATCH, LENGTH, WIDTH))
    with pytest.raises(ValueError, match="make_core must be a factory of cores"):
        SelfAttention(2, make).init(next(rngs), x, deterministic=True)


@pytest.mark.parametrize(
    "options", [{"make_block": EncoderBlock(2, NYSTROM, 7)}, {"make_final_norm": nn.LayerNorm()}]
)
def test_rejects_modules_in_place_of_factories(rngs, no_annotations, options):
    options = {"make_block": functools.partial(EncoderBlock, 2, NYSTROM, 7), **options}
    x = jnp.ones((BATCH, LENGTH, WIDTH))
    with pytest.raises(ValueError, match=r"must be a factory, such as functools\.partial\("):
        Encoder(1, **options).init(next(rngs), x, deterministic=True)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda value: value.mean(axis=1, keepdims=True), "got shape"),
        (lambda value: value.swapaxes(1, 2), "got shape"),
        (lambda value: (value, None), "got tuple"),
    ],
)
def test_rejects_the_output_of_a_core_without_the_shape_of_the_query(rngs, output, words):
    class Mine(nn.Module):
        @nn.compact
        def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
            return output(value)

    x = jnp.ones((BATCH, LENGTH, WIDTH))
    with pytest.raises(ValueError, match=f"must return one array of the query's shape .* {words}"):
        SelfAttention(2, Mine).init(next(rngs), x, deterministic=True)
    heads = x.reshape(BATCH, LENGTH, 2, -1)
    with pytest.raises(ValueError, match="must return one array of the query's shape"):
        AttentionFn(CoreFactory(Mine, ()), cross_attention=False)(heads, heads, heads)


def test_rejects_arrays_of_other_libraries(rngs, no_annotations):
    class Tensor:
        ndim, shape, dtype = 3, (BATCH, LENGTH, WIDTH), "torch.float32"

    with pytest.raises(ValueError, match=r"must be a JAX or NumPy array.*Pass jnp.asarray"):
        SelfAttention(2, make_core("softmax")).init(next(rngs), Tensor(), deterministic=True)


class TestDeterministic:
    @pytest.mark.slow(minutes=0.1)
    def test_lifted_transforms_take_a_layer_with_positional_arrays(self, rngs):
        """Two blocks by `nn.vmap`, `nn.scan` and `nn.remat`, compared with plain blocks."""
        mask = mask_of_lengths([LENGTH, 11], LENGTH)
        block = functools.partial(EncoderBlock, 2, make_core("none", conv_kernel_size=3), 7)
        lifted = lambda kind: kind(*block.args, deterministic=True)

        @nn.compact
        def step(block, x, mask):
            return block(x, mask), None

        stacked = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        mapped = lifted(nn.vmap(EncoderBlock, in_axes=(0, None), **stacked))
        scan = nn.apply(
            nn.scan(step, in_axes=nn.broadcast, length=2, **stacked), lifted(EncoderBlock)
        )

        def plain(variables, x):
            return block().apply(variables, x, mask, deterministic=True)

        def outputs(variables, x):
            first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], variables) for i in range(2))
            remat = lambda x: lifted(nn.remat(EncoderBlock)).apply(first, x, mask)
            return (
                (mapped.apply(variables, jnp.stack([x, -x]), mask), scan(variables, x, mask)[0]),
                (jnp.stack([plain(first, x), plain(second, -x)]), plain(second, plain(first, x))),
                jax.grad(lambda x: (remat(x) ** 2).sum())(x),
                jax.grad(lambda x: (plain(first, x) ** 2).sum())(x),
            )

        x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
        shapes = jax.eval_shape(lambda x: mapped.init(next(rngs), x, mask), jnp.stack([x, x]))
        values = np.random.default_rng(0)
        variables = jax.tree.map(lambda leaf: jnp.asarray(values.normal(size=leaf.shape)), shapes)
        actual, expected, gradient, expected_gradient = jax.jit(outputs)(variables, x)
        assert_close(actual, expected, REFERENCE)
        assert_close(gradient, expected_gradient, REFERENCE)

    def test_is_an_attribute_or_an_argument_and_not_both(self, rngs):
        x = jnp.ones((1, LENGTH, WIDTH))
        block = functools.partial(EncoderBlock, 2, make_core("linear"), 7)
        for layer in (
            SelfAttention(2, make_core("linear")),
            MlpBlock(7),
            block(),
            Encoder(1, block),
        ):
            with pytest.raises(ValueError, match=r'"deterministic" must be passed'):
                layer.init(next(rngs), x)
            with pytest.raises(ValueError, match=r'"deterministic" was passed .* just once'):
                layer.clone(deterministic=True).init(next(rngs), x, deterministic=False)
