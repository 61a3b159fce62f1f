import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nystromformer_jax.attention import convolution
from nystromformer_jax.attention.convolution import (
    _banded,
    _banded_gradient,
    _batched_correlation,
    _lax_convolution,
    _looped_correlation,
    _shifted,
    _sum_of_matmuls,
    dense_convolution,
    depthwise_convolution,
)
from nystromformer_jax.training.collectives import find_collectives
from tests.helpers import (
    HALF,
    HALF_GRADIENT,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    normal,
)

HEADS, DIM = 3, 5
per_head_and_channel = pytest.mark.parametrize(
    "groups", [pytest.param((HEADS,), id="head"), pytest.param((HEADS, DIM), id="channel")]
)


@pytest.fixture(params=[1, 8], ids="{} devices".format)
def devices(request, monkeypatch):
    """With one device the kernel's gradient loops over the examples, with several it does not."""
    monkeypatch.setattr(jax, "device_count", lambda: request.param)


def grouped_convolution(value, kernel):
    """Reference: XLA's grouped convolution, with one group per head or per channel."""
    if kernel.ndim == 3:
        channels = value.reshape(*value.shape[:2], -1)
        weights = kernel.reshape(channels.shape[-1], -1)
        output = jax.lax.conv_general_dilated(
            channels,
            weights.T[:, None],  # W, 1, H · D
            window_strides=(1,),
            padding=((kernel.shape[-1] // 2,) * 2,),
            feature_group_count=channels.shape[-1],
            dimension_numbers=("NHC", "HIO", "NHC"),  # H is our L, C our channels
        )
        return output.reshape(value.shape)
    return jax.lax.conv_general_dilated(
        value,
        kernel.T[:, None, None, :],  # W, 1, 1, H
        window_strides=(1, 1),
        padding=((kernel.shape[1] // 2,) * 2, (0, 0)),
        feature_group_count=kernel.shape[0],
        dimension_numbers=("NHCW", "HWIO", "NHCW"),  # H is our L, C our heads
    )


def forward_and_gradient(function, inputs, tangent):
    """The output and the pulled-back tangent, as one compiled function."""

    @jax.jit
    def run(inputs, tangent):
        output, pull_back = jax.vjp(function, *inputs)
        return output, pull_back(tangent)

    return run(inputs, tangent)


@per_head_and_channel
@pytest.mark.parametrize(
    ("length", "width"),
    [
        (1, 35),
        (31, 67),
        (128, 33),
        (263, 301),
        *(
            pytest.param(*sizes, marks=pytest.mark.slow(minutes=0.1))
            for sizes in ((1, 1), (7, 3), (127, 35), (129, 35))
        ),
    ],
)
def test_agrees_with_the_grouped_convolution_forward_and_gradient(
    rngs, devices, length, width, groups
):
    value = normal(next(rngs), (2, length, HEADS, DIM))
    kernel = normal(next(rngs), (*groups, width))
    tangent = normal(next(rngs), value.shape)

    actual, gradient = forward_and_gradient(depthwise_convolution, (value, kernel), tangent)
    expected, expected_gradient = forward_and_gradient(
        grouped_convolution, (value, kernel), tangent
    )
    assert_close(actual, expected, REFERENCE)
    assert_close(gradient, expected_gradient, REFERENCE)


@per_head_and_channel
def test_gradients_of_a_split_batch_are_only_summed_over_devices(groups):
    mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
    split = NamedSharding(mesh, P("data"))
    value = jax.ShapeDtypeStruct((8, 61, HEADS, DIM), jnp.float32, sharding=split)
    kernel = jax.ShapeDtypeStruct((*groups, 3), jnp.float32)
    gradient = jax.jit(jax.grad(lambda *x: (depthwise_convolution(*x) ** 2).sum(), (0, 1)))
    program = gradient.lower(value, kernel).compile().as_text()
    assert find_collectives(program).keys() == {"all-reduce"}


def test_a_kernel_larger_than_the_cache_gives_the_same(rngs, monkeypatch):
    value, kernel = normal(next(rngs), (2, 31, 3, 5)), normal(next(rngs), (3, 5, 7))
    expected = _shifted(value, kernel)
    monkeypatch.setattr(convolution, "CACHED_WEIGHTS", kernel.size - 1)
    assert_close(_shifted(value, kernel), expected, SAME_ARITHMETIC)


def test_equal_kernels_per_channel_equal_one_kernel_per_head(rngs):
    value = normal(next(rngs), (2, 41, HEADS, DIM))
    kernel = normal(next(rngs), (HEADS, 7))
    tangent = normal(next(rngs), value.shape)
    repeated = jnp.broadcast_to(kernel[:, None], (HEADS, DIM, 7))

    expected, expected_gradient = forward_and_gradient(
        depthwise_convolution, (value, kernel), tangent
    )
    actual, (of_value, of_kernel) = forward_and_gradient(
        depthwise_convolution, (value, repeated), tangent
    )
    assert_close(actual, expected, SAME_ARITHMETIC)
    assert_close((of_value, of_kernel.sum(axis=1)), expected_gradient, REFERENCE)


@pytest.mark.parametrize(
    ("form", "groups"),
    [
        (_banded_gradient, (HEADS,)),
        *itertools.product((_looped_correlation, _batched_correlation), ((HEADS,), (HEADS, DIM))),
    ],
)
@pytest.mark.parametrize(("length", "width"), [(1, 5), (7, 3), (31, 67), (131, 33), (300, 35)])
def test_every_form_of_the_kernel_gradient_equals_its_formula(rngs, form, length, width, groups):
    value, cotangent = (normal(next(rngs), (2, length, HEADS, DIM)) for _ in range(2))
    padded = np.pad(np.asarray(value, np.float64), ((0, 0), (width // 2,) * 2, (0, 0), (0, 0)))
    axes = {1: "blhd,blhd->h", 2: "blhd,blhd->hd"}[len(groups)]
    expected = np.stack(
        [np.einsum(axes, padded[:, w : w + length], cotangent) for w in range(width)], axis=-1
    )
    kernel = jnp.zeros((*groups, width))
    assert_close(jax.jit(form)(value, kernel, cotangent), expected, REFERENCE)


@pytest.mark.parametrize("form", [_banded, _shifted])
@pytest.mark.parametrize(("length", "width"), [(1, 5), (7, 3), (131, 33), (300, 35)])
def test_equals_the_formula_of_the_docstring(rngs, form, length, width):
    value = normal(next(rngs), (2, length, 3, 5))
    kernel = normal(next(rngs), (3, width))
    padded = np.pad(np.asarray(value, np.float64), ((0, 0), (width // 2,) * 2, (0, 0), (0, 0)))
    expected = sum(
        padded[:, w : w + length] * np.asarray(kernel, np.float64)[None, None, :, w, None]
        for w in range(width)
    )
    assert_close(jax.jit(form)(value, kernel), expected, REFERENCE)


@pytest.mark.slow_except("1 devices-channel")
@per_head_and_channel
def test_gradient_is_differentiable(rngs, devices, groups):
    value = normal(next(rngs), (2, 11, HEADS, DIM))
    kernel = normal(next(rngs), (*groups, 5))
    total = lambda value, kernel: (depthwise_convolution(value, kernel) ** 2).sum()
    reference = lambda value, kernel: (grouped_convolution(value, kernel) ** 2).sum()
    squared = lambda function: (
        lambda *x: sum((leaf**2).sum() for leaf in jax.grad(function, (0, 1))(*x))
    )
    actual = jax.jit(jax.grad(squared(total), (0, 1)))(value, kernel)
    expected = jax.jit(jax.grad(squared(reference), (0, 1)))(value, kernel)
    assert_close(actual, expected, REFERENCE)


def test_impulse_response_is_the_reversed_kernel_of_each_head():
    value = jnp.asarray(np.eye(9, dtype=np.float32)[None, :, 4, None, None].repeat(2, axis=2))
    kernel = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    output = np.asarray(depthwise_convolution(value, kernel))[0, :, :, 0].T
    np.testing.assert_array_equal(
        output, [[0, 0, 0, 3, 2, 1, 0, 0, 0], [0, 0, 0, 6, 5, 4, 0, 0, 0]]
    )


@pytest.mark.parametrize("groups", [(1,), (1, 1)])
def test_bfloat16_stays_bfloat16_and_sums_in_float32(groups):
    value = jnp.ones((1, 1024, 1, 1), jnp.bfloat16)
    output = jax.jit(depthwise_convolution)(value, jnp.full((*groups, 513), 1.0))
    assert output.dtype == jnp.bfloat16
    assert float(output[0, 512, 0, 0]) == 512  # 513 rounds to 512; a bfloat16 sum stops at 256


@pytest.mark.slow(minutes=0.1)
@per_head_and_channel
def test_a_bfloat16_gradient_is_near_the_float32_one(rngs, devices, groups):
    value, tangent = (normal(next(rngs), (2, 131, HEADS, DIM), jnp.bfloat16) for _ in range(2))
    kernel = normal(next(rngs), (*groups, 7))
    output, pull_back = jax.vjp(depthwise_convolution, value, kernel)
    of_value, of_kernel = pull_back(tangent)
    assert [x.dtype for x in (output, of_value, of_kernel)] == [*[jnp.bfloat16] * 2, jnp.float32]

    of_float32, pull_back_float32 = jax.vjp(
        depthwise_convolution, value.astype(jnp.float32), kernel
    )
    expected = pull_back_float32(tangent.astype(jnp.float32))
    assert_close(output, of_float32, HALF)
    assert_close((of_value, of_kernel), expected, HALF_GRADIENT)


def test_gradient_of_a_batch_on_an_explicit_axis_of_one_device(rngs, monkeypatch):
    """The default axes of `jax.make_mesh`; a loop over them would be an error."""
    monkeypatch.setattr("jax.device_count", lambda: 1)
    value, kernel = normal(next(rngs), (4, 11, HEADS, DIM)), normal(next(rngs), (HEADS, 5))
    gradients = jax.jit(jax.grad(lambda *x: (depthwise_convolution(*x) ** 2).sum(), (0, 1)))
    expected = gradients(value, kernel)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        split = jax.device_put(value, NamedSharding(mesh, P("data")))
        actual = gradients(split, jax.device_put(kernel, P()))
    assert_close(jax.tree.map(np.asarray, actual), expected, REFERENCE)


@pytest.mark.parametrize("groups", [(HEADS,), (HEADS, DIM)], ids=["head", "channel"])
def test_kernel_gradient_is_summed_over_the_devices_of_a_shard_map(rngs, groups):
    value = normal(next(rngs), (4, 11, HEADS, DIM))
    kernel = normal(next(rngs), (*groups, 5))
    gradients = jax.grad(
        lambda value, kernel: (depthwise_convolution(value, kernel) ** 2).sum(), (0, 1)
    )
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,), devices=jax.devices()[:2])
    specs = P("data"), P()
    split = jax.jit(jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=specs))
    assert_close(split(value, kernel), jax.jit(gradients)(value, kernel), REFERENCE)


@pytest.mark.slow_except("1 devices-channel")
@per_head_and_channel
def test_vmap_and_jit_change_nothing(rngs, devices, groups):
    """With a kernel per row of the mapped axis, forward and backward."""
    value = normal(next(rngs), (2, 3, 11, HEADS, DIM))
    kernel = normal(next(rngs), (2, *groups, 5))

    def run(value, kernel):
        output, pull_back = jax.vjp(depthwise_convolution, value, kernel)
        return output, pull_back(jnp.sin(output))

    pairs = zip(np.asarray(value), np.asarray(kernel), strict=True)
    each = [jax.jit(run)(*pair) for pair in pairs]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    assert_close(jax.vmap(run)(value, kernel), expected, REFERENCE)
    assert_close(jax.jit(jax.vmap(run))(value, kernel), expected, REFERENCE)


@pytest.mark.parametrize(
    "shape", [(3, 4), (2, 3), (3,), (), (3, 2, 4), (3, 1, 5), (2, 3, 5), (1, 3, 2, 5)]
)
def test_rejects_a_kernel_of_the_wrong_shape(shape, no_annotations):
    with pytest.raises(ValueError, match="W odd"):
        depthwise_convolution(jnp.ones((1, 8, 3, 2)), jnp.ones(shape))


def test_rejects_a_value_of_the_wrong_rank(no_annotations):
    with pytest.raises(ValueError, match="value must be"):
        depthwise_convolution(jnp.ones((8, 3, 2)), jnp.ones((3, 5)))


@pytest.mark.parametrize("form", [dense_convolution, _sum_of_matmuls, _lax_convolution])
@pytest.mark.parametrize(
    ("length", "width", "dilation"), [(1, 1, 1), (1, 5, 1), (3, 7, 1), (31, 5, 1), (31, 5, 3)]
)
def test_dense_convolution_equals_the_formula_of_the_docstring(rngs, form, length, width, dilation):
    """Forward and backward, from 5 channels to 7."""
    x = normal(next(rngs), (2, length, 5))
    kernel = normal(next(rngs), (width, 5, 7))
    tangent = normal(next(rngs), (2, length, 7))

    def plain(x, kernel):
        padded = jnp.pad(x, ((0, 0), (dilation * (width // 2),) * 2, (0, 0)))
        windows = jnp.stack([padded[:, dilation * w :][:, :length] for w in range(width)])
        return jnp.einsum("WBLE,WEF->BLF", windows, kernel)

    form = functools.partial(form, dilation=dilation)
    actual, gradient = forward_and_gradient(form, (x, kernel), tangent)
    expected, expected_gradient = forward_and_gradient(plain, (x, kernel), tangent)
    assert_close(actual, expected, REFERENCE)
    assert_close(gradient, expected_gradient, REFERENCE)


def test_dense_convolution_in_bfloat16_sums_in_float32():
    x = jnp.ones((1, 1024, 1), jnp.bfloat16)
    output = dense_convolution(x, jnp.ones((513, 1, 1), jnp.bfloat16))
    assert output.dtype == jnp.bfloat16
    assert float(output[0, 512, 0]) == 512  # 513 rounds to 512; a bfloat16 sum stops at 256
