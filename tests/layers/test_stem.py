"""The convolutions before the first block equal their formula, and ignore padding at the ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.layers.stem import ConvStem
from tests.helpers import HALF, REFERENCE, assert_close, normal

BATCH, LENGTH, WIDTH = 2, 23, 12


def apply(module, variables, *inputs):
    """The output, compiled as a whole."""
    return jax.jit(module.apply)(variables, *inputs)


def test_equals_its_formula():
    """Three tokens of two channels: normalised, they are s, -s and s with s = (1, -1)."""
    x = jnp.array([[[3.0, 1.0], [0.0, 4.0], [7.0, 2.0]]])
    identity = jnp.eye(2)[None]
    weights = {
        "norm": {"scale": jnp.ones(2), "bias": jnp.zeros(2)},
        # Weights of 1 for the token before, 10 for the token itself and 100 for the one after.
        "convolution_0": {
            "kernel": identity * jnp.array([1.0, 10.0, 100.0])[:, None, None],
            "bias": jnp.zeros(2),
        },
        "convolution_1": {"kernel": -identity, "bias": jnp.array([0.0, 0.5])},
    }
    stem = ConvStem((3, 1), activation="relu", layer_norm_epsilon=1e-12)
    # First layer: s + relu(10 s - 100 s), -s + relu(s - 10 s + 100 s), s + relu(-s + 10 s).
    # Second layer: adds relu(0.5 - x) to the last channel of (1, 89), (90, 1), (10, -1).
    expected = jnp.array([[[1.0, 89.0], [90.0, 1.0], [10.0, 0.5]]])
    assert_close(apply(stem, {"params": weights}, x), expected, REFERENCE)


def test_dilation_convolves_every_second_token_alone(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    variables = jax.jit(ConvStem((5, 3)).init)(next(rngs), x)
    actual = np.asarray(apply(ConvStem((5, 3), dilations=(2, 2)), variables, x))
    for start in (0, 1):
        alone = apply(ConvStem((5, 3)), variables, x[:, start::2])
        assert_close(actual[:, start::2], alone, REFERENCE)


def test_padding_at_the_ends_changes_nothing(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH))
    stem = ConvStem((5, 3), dilations=(1, 4))
    variables = jax.jit(stem.init)(next(rngs), x)
    real = np.ones((BATCH, LENGTH), bool)
    widths = ((0, 0), (3, 7))
    padded = np.pad(x, (*widths, (0, 0)), constant_values=np.nan)
    actual = np.asarray(apply(stem, variables, padded, np.pad(real, widths)))[:, 3:-7]
    assert_close(actual, apply(stem, variables, x), REFERENCE)
    assert_close(actual, apply(stem, variables, x, real), REFERENCE)


def test_half_precision_activations_keep_float32_parameters(rngs):
    x = normal(next(rngs), (BATCH, LENGTH, WIDTH), jnp.bfloat16)
    stem = ConvStem((5, 3), dtype=jnp.bfloat16)
    variables = jax.jit(stem.init)(next(rngs), x)
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    output = apply(stem, variables, x)
    assert output.dtype == jnp.bfloat16
    expected = apply(ConvStem((5, 3)), variables, x.astype(jnp.float32))
    assert_close(output, expected, HALF)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kernel_sizes": (3, 4)}, "kernel_sizes must be odd.*got 4"),
        ({"kernel_sizes": (0,)}, "kernel_sizes must be an integer of at least 1, got 0"),
        (
            {"kernel_sizes": (3,), "dilations": (0,)},
            "dilations must be an integer of at least 1",
        ),
        (
            {"kernel_sizes": (3, 5), "dilations": (2,)},
            "dilations needs one number for each of the 2 kernel_sizes, got 1",
        ),
        ({"kernel_sizes": (3,), "activation": "gel"}, "activation must be one of 'gelu'"),
    ],
)
def test_rejects_invalid_options(rngs, no_annotations, options, sentence):
    x = jnp.ones((1, LENGTH, WIDTH))
    with pytest.raises(ValueError, match=sentence):
        ConvStem(**options).init(next(rngs), x)


def test_rejects_a_mask_of_the_wrong_shape(rngs, no_annotations):
    x = jnp.ones((1, LENGTH, WIDTH))
    with pytest.raises(
        ValueError, match=r"mask must have shape \(1, 23\) and be True at real tokens"
    ):
        ConvStem((3,)).init(next(rngs), x, jnp.ones(LENGTH, bool))
