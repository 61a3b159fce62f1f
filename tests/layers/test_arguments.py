"""Arguments and options that layers reject, in linen and in NNX; tests/bad_input has single wrong values."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import nystromformer_jax.nnx as native
from nystromformer_jax.cores import CoreFactory, make_core
from nystromformer_jax.layers.adapters import AttentionFn
from nystromformer_jax.layers.encoder import (
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
    SelfAttention,
)
from nystromformer_jax.layers.gated_ema import GatedEmaBlock
from nystromformer_jax.layers.stem import ConvStem

pytestmark = pytest.mark.usefixtures("no_annotations")

BATCH, LENGTH, WIDTH = 2, 23, 12
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


def gated(**options):
    block = GatedEmaBlock(2, SOFTMAX, 16, **options)
    block.init(jax.random.key(0), X, deterministic=True)


def stem(*, mask=None, **options):
    ConvStem(**{"kernel_sizes": (3,), **options}).init(jax.random.key(0), X, mask)


def in_nnx(name="nystrom", x=X, make=None, **options):
    make = make or make_core(name, **options)
    native.SelfAttention(2, WIDTH, make, rngs=nnx.Rngs(0))(x)


CASES = [
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
    (in_nnx, (), {"x": X[..., :5]}, "12 features"),
    # Cores.
    (attention, (X, X), {"make": make_core("none")}, "inputs_kv=None"),
    (attention, (X, X[:, :5]), {"make": make_core("reformer")}, "inputs_kv=None"),
    *((attention, (X,), {"make": make}, "factory") for make in ("nystrom", None, SOFTMAX())),
    (in_nnx, (), {"make": "nystrom"}, "factory"),
    (in_nnx, (), {"name": "linformer"}, "max_len"),
    # Sizes and options.
    (attention, (X,), {"num_heads": 5}, "12 and 5"),
    (attention, (X,), {"out_features": 0}, "out_features"),
    (encoder, (), {"make_block": BLOCK()}, "factory"),
    (encoder, (), {"make_final_norm": nn.LayerNorm()}, "factory"),
    (gated, (), {"num_states": -1}, "num_states"),
    (gated, (), {"max_time_scale": 1}, "max_time_scale"),
    (gated, (), {"ema_normalization": "sum"}, "'variance'"),
    (gated, (), {"qkv_features": 7}, "7 and 2"),
    (gated, (), {"activation": "gel"}, "'gelu'"),
    (stem, (), {"kernel_sizes": (3, 4)}, "odd"),
    (stem, (), {"kernel_sizes": (0,)}, "kernel_sizes"),
    (stem, (), {"dilations": (0,)}, "dilations"),
    (stem, (), {"dilations": (2, 2)}, "got 2"),
    (stem, (), {"activation": "gel"}, "'gelu'"),
    (stem, (), {"mask": MASK[0]}, r"\(2, 23\)"),
]


@pytest.mark.parametrize(("call", "arguments", "named", "word"), CASES)
def test_errors_name_what_is_wrong_or_valid(call, arguments, named, word):
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
    for call in (
        lambda: SelfAttention(2, Mine).init(jax.random.key(0), X, deterministic=True),
        lambda: function(heads, heads, heads),
    ):
        with pytest.raises(ValueError, match="shape"):
            call()


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda p: p | {"extra": {"w": 1.0}}, "unexpected parameters extra/w"),
        (lambda p: p | {"key": {}}, "lack the parameters key/bias, key/kernel"),
        (lambda p: p | {"out": p["out"] | {"bias": jnp.ones(5)}}, "out/bias"),
        (lambda p: p | {"out": p["out"] | {"bias": jnp.ones(WIDTH, int)}}, "int32"),
    ],
)
def test_load_linen_names_the_wrong_parameter(change, word):
    layer = native.SelfAttention(2, WIDTH, SOFTMAX, rngs=nnx.Rngs(0))
    variables = native.to_linen(layer)
    with pytest.raises(ValueError, match=word):
        native.load_linen(layer, {"params": change(variables["params"])})
    with pytest.raises(ValueError, match='"params"'):
        native.load_linen(layer, variables["params"])


def test_a_source_of_random_numbers_is_no_key():
    dropout = native.Dropout(0.5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"nnx\.Rngs\(key\)"):
        dropout(X, rngs=jax.random.key(0))
