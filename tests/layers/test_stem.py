"""The convolutions before the first block equal their formula, and ignore padding at the ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.layers.stem import ConvStem
from tests.helpers import REFERENCE, assert_close, normal

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


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kernel_sizes": (3, 4)}, "odd"),
        ({"kernel_sizes": (0,)}, "kernel_sizes"),
        ({"dilations": (0,)}, "dilations"),
        ({"dilations": (2, 2)}, "got 2"),
        ({"activation": "gel"}, "'gelu'"),
        ({"mask": jnp.ones(LENGTH, bool)}, r"\(2, 23\)"),
    ],
)
def test_rejects_invalid_arguments(no_annotations, options, word):
    mask = options.get("mask")
    options = {name: value for name, value in options.items() if name != "mask"}
    stem = ConvStem(**{"kernel_sizes": (3,), **options})
    with pytest.raises(ValueError, match=word):
        stem.init(jax.random.key(0), jnp.ones((BATCH, LENGTH, WIDTH)), mask)
