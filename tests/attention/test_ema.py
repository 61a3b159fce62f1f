import functools
import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from benchmarks.averages import fft_ema
from nystromformer_jax.attention.ema import multi_scale_ema
from tests.helpers import HALF, REFERENCE, assert_close, largest_array, normal

BATCH, CHANNELS, STATES = 2, 3, 4
jit_ema = jax.jit(multi_scale_ema)


def random_averages(rngs, length, batch=BATCH):
    """An input, time scales from half a token to many chunks, and weights."""
    x = normal(next(rngs), (batch, length, CHANNELS))
    shape = (2, CHANNELS, STATES)
    time_scales = jnp.exp(jax.random.uniform(next(rngs), shape, minval=-0.7, maxval=7.0))
    return x, time_scales, normal(next(rngs), shape) / STATES


def squared(function, *arguments, **options):
    return (function(*arguments, **options) ** 2).mean()


@pytest.mark.slow_except("1", "700")
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 128, 129, 700])
def test_equals_the_convolution_of_real_tokens_with_the_whole_kernel(rngs, length):
    """Forward and gradient, whatever padding contains: it counts as zeros."""
    x, *states = random_averages(rngs, length)
    mask = jax.random.bernoulli(next(rngs), 0.8, x.shape[:2])

    def run(function, x):
        def loss(*arguments):
            output = function(*arguments)
            return (output**2).mean(), output

        return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, *states)

    whole = lambda x, *states: fft_ema(jnp.where(mask[..., None], x, 0), *states)
    own = functools.partial(multi_scale_ema, mask=mask)
    actual, output = run(own, jnp.where(mask[..., None], x, jnp.nan))
    expected, expected_output = run(whole, x)
    assert_close(output, expected_output, REFERENCE)
    assert_close(actual, expected, REFERENCE)


@pytest.mark.slow_except("2x4-1021")
@pytest.mark.parametrize("length", [3, 800, 1021])
@pytest.mark.parametrize("shape", [(1, 8), (2, 4)], ids=["1x8", "2x4"])
def test_a_split_length_gives_the_same_forward_and_gradient(rngs, length, shape):
    x, *states = random_averages(rngs, length)
    explicit = 2 * (AxisType.Explicit,)
    devices = jax.devices()[: math.prod(shape)]
    mesh = jax.make_mesh(shape, ("data", "sequence"), explicit, devices=devices)

    def run(x, **options):
        def loss(*arguments):
            output = multi_scale_ema(*arguments, **options)
            return (output**2).mean(), output

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(x, *states)

    with jax.set_mesh(mesh), jax.numpy_dtype_promotion("strict"):
        split = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
        (_, output), gradient = run(split, mesh=mesh)
    (_, expected), expected_gradient = run(x)
    assert_close(output, expected, REFERENCE)
    assert_close(gradient, expected_gradient, REFERENCE)


@pytest.mark.parametrize(
    ("length", "stays_split"), [(800, True), (520, False), (1024, True), (24, True)]
)
def test_a_length_of_whole_chunks_stays_split(length, stays_split):
    """Parts of 100 tokens are two chunks of 50; parts of 65 would be two chunks of 32.5."""
    mesh = jax.make_mesh((8,), ("sequence",), (AxisType.Explicit,))
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, PartitionSpec(None, "sequence"))
        x = jax.ShapeDtypeStruct((2, length, CHANNELS), jnp.float32, sharding=split)
        states = jax.ShapeDtypeStruct((2, CHANNELS, STATES), jnp.float32)
        output = jax.eval_shape(functools.partial(multi_scale_ema, mesh=mesh), x, states, states)
    assert (output.sharding.spec == PartitionSpec(None, "sequence", None)) == stays_split


def test_a_batch_split_over_devices_stays_split():
    mesh = jax.make_mesh((4,), ("data",), (AxisType.Auto,), devices=jax.devices()[:4])
    split = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((8, 300, CHANNELS), jnp.float32, sharding=split)
    states = jax.ShapeDtypeStruct((2, CHANNELS, STATES), jnp.float32)
    gradient = jax.jit(jax.grad(functools.partial(squared, multi_scale_ema), (0, 1, 2)))
    text = gradient.lower(x, states, states).compile().as_text()
    assert "all-reduce" in text  # of the gradients with respect to the parameters
    assert not re.search("all-gather|all-to-all|collective-permute", text)


def test_arrays_of_the_gradient_are_linear_in_the_length():
    states = jax.ShapeDtypeStruct((2, CHANNELS, STATES), jnp.float32)
    gradient = jax.grad(lambda *x: (multi_scale_ema(*x) ** 2).sum(), (0, 1, 2))
    short, long = (
        largest_array(gradient, jax.ShapeDtypeStruct((1, n, CHANNELS), jnp.float32), states, states)
        for n in (1024, 8192)
    )
    assert long < 9 * short


def test_half_precision_is_near_float32(rngs):
    x, *states = random_averages(rngs, 300)
    with jax.numpy_dtype_promotion("strict"):
        output = jit_ema(x.astype(jnp.bfloat16), *states)
    assert output.dtype == jnp.bfloat16
    assert_close(output, jit_ema(x, *states), HALF)


def test_constant_time_scales_are_validated_inside_jit(rngs):
    x, time_scales, weights = random_averages(rngs, 70)
    negative = -time_scales
    with pytest.raises(ValueError, match="positive"):
        jax.jit(lambda x: multi_scale_ema(x, negative, weights))(x)


ONES = jnp.ones((2, 4, 7))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"time_scales": jnp.ones((2, 4))}, "states"),
        ({"weights": jnp.ones((2, 4, 5))}, r"\(2, 4, 5\)"),
        ({"weights": ONES[..., :0], "time_scales": ONES[..., :0]}, "at least one"),
        ({"mask": jnp.ones((5,), bool)}, r"\(2, 5\)"),
        ({"x": jnp.ones((2, 5, 4), int)}, "int32"),
        ({"weights": ONES.astype(int)}, "int32"),
        ({"axis": "model"}, "'sequence'"),
        ({"mesh": 3}, "Mesh"),
    ],
)
def test_rejects_invalid_arguments(no_annotations, changes, word):
    mesh = jax.make_mesh((1,), ("sequence",), devices=jax.devices()[:1])
    valid = {"x": jnp.ones((2, 5, 4)), "time_scales": ONES, "weights": ONES, "mesh": mesh}
    with pytest.raises(ValueError, match=word):
        multi_scale_ema(**valid | changes)
