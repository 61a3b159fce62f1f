import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nystromformer_jax.cores import CoreFactory, make_core
from nystromformer_jax.layers.adapters import AttentionFn
from nystromformer_jax.layers.encoder import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    SelfAttention,
)
from tests.helpers import (
    REFERENCE,
    assert_close,
    dropped_shapes,
    mask_of_lengths,
    normal,
    random_variables,
)

NYSTROM = make_core("nystrom", num_landmarks=5, conv_kernel_size=3)
BATCH, LENGTH, WIDTH = 2, 23, 12


def test_pre_norm_and_post_norm_equal_their_formulas(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    pre, post = (
        EncoderBlock(2, NYSTROM, 7, norm=kind, deterministic=True) for kind in ("pre", "post")
    )
    variables = random_variables(next(rngs), pre, x, deterministic=None)
    weights = variables["params"]

    def layer(module, name):
        return functools.partial(module.apply, {"params": weights[name]}, deterministic=True)

    def norm(name, x):
        return nn.LayerNorm(epsilon=1e-5).apply({"params": weights[name]}, x)

    @jax.jit
    def run(x):
        attend, mlp = layer(SelfAttention(2, NYSTROM), "attention"), layer(MlpBlock(7), "mlp")
        middle = x + attend(norm("attention_norm", x))
        of_pre = middle + mlp(norm("mlp_norm", middle))
        middle = norm("attention_norm", x + attend(x))
        of_post = norm("mlp_norm", middle + mlp(middle))
        return [pre.apply(variables, x), post.apply(variables, x)], [of_pre, of_post]

    assert_close(*run(x), REFERENCE)


def test_dropout_applies_to_the_attention_output_and_twice_in_the_mlp(rngs):
    x = jnp.ones((1, 4, WIDTH))
    block = EncoderBlock(2, NYSTROM, 7, dropout_rate=0.5)
    variables = random_variables(next(rngs), block, x)
    assert dropped_shapes(block, variables, x) == [(1, 4, WIDTH), (1, 4, 7), (1, 4, WIDTH)]


@pytest.mark.parametrize(
    ("name", "names"),
    [("reformer", {"query", "value"}), ("none", {"value"}), ("linear", {"query", "key", "value"})],
)
def test_only_what_the_core_reads_is_projected(rngs, name, names):
    module = SelfAttention(2, make_core(name))
    init = functools.partial(module.init, deterministic=True)
    variables = jax.eval_shape(init, next(rngs), jnp.ones((BATCH, LENGTH, WIDTH)))
    assert set(variables["params"]) == {*names, "out"}


def test_softmax_attention_equals_that_of_flax(rngs):
    """Cross-attention from 23 queries to 17 keys and values of another width, under both masks."""
    queries = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    keys, values = (normal(next(rngs), (BATCH, 17, 9)) for _ in range(2))
    mask = mask_of_lengths([17, 5], 17)
    options = {"num_heads": 2, "qkv_features": 8, "out_features": 3, "normalize_qk": True}
    theirs = nn.MultiHeadDotProductAttention(**options)
    variables = random_variables(next(rngs), theirs, queries, keys, values, deterministic=None)
    # Theirs have an axis of heads: [E H D], and [H D E] of the output.
    flat = {**variables["params"]}
    for name, rows in (("query", WIDTH), ("key", 9), ("value", 9), ("out", 8)):
        kernel, bias = flat[name]["kernel"], flat[name]["bias"]
        flat[name] = {"kernel": kernel.reshape(rows, -1), "bias": bias.reshape(-1)}
    ours = MultiHeadAttention(make_core=make_core("softmax"), **options)
    query_mask = jnp.ones((BATCH, LENGTH), bool)
    options = {"mask": mask, "query_mask": query_mask, "deterministic": True}

    @jax.jit
    def outputs(keys, values):
        run = functools.partial(ours.apply, {"params": flat}, queries, **options)
        attend = functools.partial(theirs.apply, variables, queries, mask=mask[:, None, None])
        actual = run(keys), run(inputs_k=keys), run(inputs_k=keys, inputs_v=values)
        return actual, (attend(keys), attend(keys), attend(keys, values))

    assert_close(*outputs(keys, values), REFERENCE)


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

    @jax.jit
    def outputs(x):
        transformed = make(transform_qk=lambda x: 2 * x).apply(variables, x, deterministic=True)
        run = functools.partial(make().apply, deterministic=True)
        return transformed, run({"params": {**params, **doubled}}, x), run(variables, x)

    twice, expected, plain = outputs(x)
    assert_close(twice, expected, REFERENCE)
    assert jnp.abs(expected - plain).max() > 0.01


@pytest.mark.slow(minutes=0.1)
def test_an_encoder_converts_to_nnx_with_all_parameters(rngs):
    block = functools.partial(EncoderBlock, 2, make_core("nystrom", num_landmarks=3), 7)
    encoder, x = Encoder(2, block), normal(next(rngs), (BATCH, LENGTH, 6))
    bridged = nnx.bridge.ToNNX(encoder, rngs=nnx.Rngs(0))
    nnx.bridge.lazy_init(bridged, x[:, :1], deterministic=True)
    own = jax.eval_shape(functools.partial(encoder.init, deterministic=True), next(rngs), x)
    size = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))
    assert size(nnx.state(bridged, nnx.Param)) == size(own)


@pytest.mark.slow(minutes=0.1)
def test_lifted_transforms_take_a_layer_with_positional_arrays(rngs):
    """Two blocks by `nn.vmap`, and by `nn.scan` of `nn.remat`, compared with plain blocks."""
    mask = mask_of_lengths([LENGTH, 11], LENGTH)
    block = functools.partial(EncoderBlock, 2, make_core("none", conv_kernel_size=3), 7)
    lifted = lambda kind: kind(*block.args, deterministic=True)

    @nn.compact
    def step(block, x, mask):
        return block(x, mask), None

    stacked = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    mapped = lifted(nn.vmap(EncoderBlock, in_axes=(0, None), **stacked))
    scan = nn.scan(step, in_axes=nn.broadcast, length=2, **stacked)
    scan = nn.apply(scan, lifted(nn.remat(EncoderBlock)))

    def plain(variables, x):
        return block().apply(variables, x, mask, deterministic=True)

    def outputs(variables, x):
        first, second = (jax.tree.map(lambda leaf, i=i: leaf[i], variables) for i in range(2))
        scanned = lambda x: scan(variables, x, mask)[0]
        in_order = lambda x: plain(second, plain(first, x))
        chain = lambda layers: jax.value_and_grad(lambda x: (layers(x) ** 2).sum())(x)
        return (
            (mapped.apply(variables, jnp.stack([x, -x]), mask), chain(scanned)),
            (jnp.stack([plain(first, x), plain(second, -x)]), chain(in_order)),
        )

    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    stack = jnp.stack([x, x])
    variables = random_variables(next(rngs), mapped, stack, mask, scale=1, deterministic=None)
    assert_close(*jax.jit(outputs)(variables, x), REFERENCE)


X, MASK = jnp.ones((BATCH, LENGTH, WIDTH)), jnp.ones((BATCH, LENGTH), bool)
SOFTMAX = make_core("softmax")
BLOCK = functools.partial(EncoderBlock, 2, SOFTMAX, 7)


class Tensor:
    """An array of another library."""

    ndim, shape, dtype = 3, (BATCH, LENGTH, WIDTH), "torch.float32"


def attention(*arguments, num_heads=2, make=SOFTMAX, out_features=None, **named):
    layer = MultiHeadAttention(num_heads, make, out_features=out_features)
    layer.init(jax.random.key(0), *arguments, **named, deterministic=True)


def encoder(**options):
    options = {"make_block": BLOCK, **options}
    Encoder(1, **options).init(jax.random.key(0), X, deterministic=True)


@pytest.mark.parametrize(
    ("call", "arguments", "named", "word"),
    [
        # Inputs of attention.
        (attention, (X, X, X), {}, "by name"),  # the order of Flax
        (attention, (X, X), {"inputs_v": X}, "alone"),
        (attention, (X,), {"inputs_v": X}, "inputs_k"),
        (attention, (X,), {"inputs_k": X, "inputs_v": X[0]}, "inputs_v"),
        (attention, (X,), {"inputs_k": X, "inputs_v": X[:, :5]}, r"\(2, 5, 12\)"),
        (attention, (X, X, MASK), {}, "query_mask"),
        (attention, (X,), {"inputs_k": X, "mask": MASK}, "query_mask"),
        (attention, (X, X, MASK[:, None, None]), {}, "padding masks"),
        (attention, (Tensor(),), {}, r"jnp\.asarray"),
        # Cores.
        (attention, (X, X), {"make": make_core("none")}, "inputs_kv=None"),
        (attention, (X, X[:, :5]), {"make": make_core("reformer")}, "inputs_kv=None"),
        *((attention, (X,), {"make": make}, "factory") for make in ("nystrom", None, SOFTMAX())),
        # Sizes and options.
        (attention, (X,), {"num_heads": 5}, "12 and 5"),
        (attention, (X,), {"out_features": 0}, "out_features"),
        (encoder, (), {"make_block": BLOCK()}, "factory"),
        (encoder, (), {"make_final_norm": nn.LayerNorm()}, "factory"),
    ],
)
def test_rejects_invalid_arguments(no_annotations, call, arguments, named, word):
    """Single arguments of a wrong rank or size are in tests/bad_input."""
    with pytest.raises(ValueError, match=word):
        call(*arguments, **named)


@pytest.mark.parametrize(
    "output",
    [
        lambda value: value.mean(axis=1, keepdims=True),
        lambda value: value.swapaxes(1, 2),
        lambda value: (value, None),
    ],
)
def test_a_core_must_return_one_array_of_the_shape_of_the_query(output):
    class Mine(nn.Module):
        @nn.compact
        def __call__(self, query, key, value, mask=None, query_mask=None, *, deterministic):
            return output(value)

    heads = X.reshape(BATCH, LENGTH, 2, -1)
    function = AttentionFn(CoreFactory(Mine, ()), cross_attention=False)
    with pytest.raises(ValueError, match="shape"):
        SelfAttention(2, Mine).init(jax.random.key(0), X, deterministic=True)
    with pytest.raises(ValueError, match="shape"):
        function(heads, heads, heads)
