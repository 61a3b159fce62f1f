"""The contract of every linen layer; test_nnx.py compares the layers in NNX with these."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import Encoder, EncoderBlock, MultiHeadAttention, SelfAttention, make_core
from nystromformer_jax.layers.encoder import MlpBlock
from nystromformer_jax.layers.gated_ema import GatedEmaBlock, MultiScaleEma
from nystromformer_jax.layers.stem import ConvStem
from tests.helpers import (
    GRADIENT,
    REFERENCE,
    assert_close,
    mask_of_lengths,
    normal,
    random_variables,
)

BATCH, LENGTH, WIDTH = 2, 23, 12
NYSTROM = make_core("nystrom", num_landmarks=5, conv_kernel_size=3)


class OfPair(MultiHeadAttention):
    """Self-attention, called with the tokens as queries and as keys."""

    def __call__(self, x, mask, **options):
        return super().__call__(x, x, mask, mask, **options)


class OfThree(MultiHeadAttention):
    """The same with separate inputs for queries, keys and values."""

    def __call__(self, x, mask, **options):
        inputs = {"inputs_k": x, "inputs_v": 2 * x}
        return super().__call__(x, None, mask, mask, **inputs, **options)


def gated(name, num_states=3, **options):
    core = make_core(name, **options)
    return GatedEmaBlock(2, core, 16, num_states, max_time_scale=LENGTH, deterministic=True)


LAYERS = {
    "attention": SelfAttention(2, NYSTROM, deterministic=True),
    "of a pair": OfPair(2, NYSTROM, deterministic=True),
    "of three": OfThree(2, NYSTROM, deterministic=True),
    "block": EncoderBlock(2, NYSTROM, 7, deterministic=True),
    "encoder": Encoder(2, functools.partial(EncoderBlock, 2, NYSTROM, 7), deterministic=True),
    "gated ema": gated("nystrom", num_landmarks=5, conv_kernel_size=3),
    "gated ema, softmax": gated("softmax"),
    "gated ema, none": gated("none", conv_kernel_size=3),
    "gated ema, reformer": gated("reformer", chunk_len=16, num_buckets=4),
    "averages": MultiScaleEma(3, LENGTH),
    "stem": ConvStem((5, 3), dilations=(1, 4)),
}


@pytest.mark.slow_except("of three", "gated ema", "stem")
@pytest.mark.parametrize("name", LAYERS)
def test_padding_changes_neither_the_output_nor_the_gradients_of_parameters(rngs, name):
    """At both ends, whatever it contains."""
    layer, x = LAYERS[name], normal(next(rngs), (BATCH, LENGTH, WIDTH))
    mask = np.asarray(mask_of_lengths([LENGTH, 11], LENGTH))
    variables = random_variables(next(rngs), layer, x, mask, scale=0.3, deterministic=None)

    @jax.jit
    def run(variables, x, mask):
        def loss(variables):
            output = layer.apply(variables, x, mask)
            return jnp.where(mask[..., None], output**2, 0).sum(), output

        return jax.grad(loss, has_aux=True)(variables)

    gradient, output = run(variables, x, mask)
    widths = ((0, 0), (3, 7))
    filled = np.where(mask[..., None], x, np.inf)
    padded = np.pad(filled, (*widths, (0, 0)), constant_values=np.nan)
    padded_gradient, padded_output = run(variables, padded, np.pad(mask, widths))
    assert_close(padded_output[:, 3:-7], output, REFERENCE, where=mask)
    assert_close(padded_gradient, gradient, GRADIENT)
    # Every parameter is used.
    assert all(leaf.any() for leaf in jax.tree.leaves(jax.device_get(gradient)))


# The dtype of an encoder is that of its blocks.
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "encoder"])
def test_half_precision_keeps_float32_parameters_and_promotes_nothing(rngs, name):
    layer = LAYERS[name].clone(dtype=jnp.bfloat16)
    x = jax.ShapeDtypeStruct((BATCH, LENGTH, WIDTH), jnp.bfloat16)
    mask = jax.ShapeDtypeStruct((BATCH, LENGTH), bool)
    has_norm = name not in ("attention", "averages", "of a pair", "of three")
    with jax.numpy_dtype_promotion("standard" if has_norm else "strict"):  # Flax's norm promotes
        output, variables = jax.eval_shape(layer.init_with_output, next(rngs), x, mask)
    assert output.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
    "layer",
    [
        EncoderBlock(2, make_core("none"), 7, deterministic=True),
        gated("none", num_states=0),
        ConvStem((3, 3)),
    ],
    ids=["block", "gated ema", "stem"],
)
def test_precision_is_that_of_all_products(rngs, layer, platform):
    layer, x = layer.clone(precision="highest"), normal(next(rngs), (2, 13, 6))
    variables = random_variables(next(rngs), layer, x, deterministic=None)
    traced = jax.jit(layer.apply).trace(variables, x)
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"stablehlo\.(?:dot_general|convolution).*", program)
    assert len(products) >= 2
    assert all(re.search("HIGHEST.*HIGHEST", product) for product in products)


def test_deterministic_is_an_attribute_or_an_argument_and_not_both(rngs):
    x = jnp.ones((1, LENGTH, WIDTH))
    block = functools.partial(EncoderBlock, 2, make_core("linear"), 7)
    for layer in (SelfAttention(2, make_core("linear")), MlpBlock(7), block(), Encoder(1, block)):
        with pytest.raises(ValueError, match="must be passed"):
            layer.init(next(rngs), x)
        with pytest.raises(ValueError, match="just once"):
            layer.clone(deterministic=True).init(next(rngs), x, deterministic=False)
