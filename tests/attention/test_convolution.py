import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nystromformer_jax import nystrom_attention
from nystromformer_jax.attention import convolution
from nystromformer_jax.attention.convolution import (
    _banded,
    _lax_convolution,
    _shifted,
    _sum_of_matmuls,
    dense_convolution,
    depthwise_convolution,
)
from nystromformer_jax.training.collectives import find_collectives
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    forward_and_gradients,
    normal,
    random_inputs,
)

HEADS, DIM = 3, 5
GROUPS = {"head": (HEADS,), "channel": (HEADS, DIM)}
per_head_and_channel = pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)


@pytest.fixture
def one_device(monkeypatch):
    """With one device the kernel's gradient loops over the examples, with several it does not."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)


def formula(value, kernel):
    """Reference: Σ_w value[l + w − W // 2] · kernel[w], from all windows of the value."""
    length, width = value.shape[1], kernel.shape[-1]
    padded = jnp.pad(value, ((0, 0), (width // 2,) * 2, (0, 0), (0, 0)))
    windows = padded[:, np.arange(length)[:, None] + np.arange(width)]
    kernel = kernel if kernel.ndim == 3 else jnp.repeat(kernel[:, None], value.shape[-1], axis=1)
    return jnp.einsum("BLWHD,HDW->BLHD", windows, kernel)


@per_head_and_channel
@pytest.mark.slow_except(
    *(f"{case}-{groups}" for case in ("31-67-8", "128-33-1") for groups in GROUPS), "1-35-1-head"
)
@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(
    ("length", "width"),
    [(1, 1), (1, 35), (7, 3), (31, 67), (127, 35), (128, 33), (129, 35), (263, 301)],
)
def test_equals_its_formula_forward_and_gradient(rngs, request, length, width, devices, groups):
    if devices == 1:
        request.getfixturevalue("one_device")
    inputs = normal(next(rngs), (2, length, HEADS, DIM)), normal(next(rngs), (*groups, width))
    tangent = normal(next(rngs), inputs[0].shape)
    expected = forward_and_gradients(formula, inputs, tangent)
    assert_close(forward_and_gradients(depthwise_convolution, inputs, tangent), expected, REFERENCE)
    if len(groups) == 1:  # the form on TPUs and GPUs
        assert_close(jax.jit(_banded)(*inputs), expected[0], REFERENCE)


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


@pytest.mark.slow_except("channel")
@pytest.mark.usefixtures("one_device")
@per_head_and_channel
def test_gradient_is_differentiable(rngs, groups):
    value = normal(next(rngs), (2, 11, HEADS, DIM))
    kernel = normal(next(rngs), (*groups, 5))

    def second(convolve):
        total = lambda *x: (convolve(*x) ** 2).sum()
        squared = lambda *x: sum((leaf**2).sum() for leaf in jax.grad(total, (0, 1))(*x))
        return jax.jit(jax.grad(squared, (0, 1)))(value, kernel)

    assert_close(second(depthwise_convolution), second(formula), REFERENCE)


@pytest.mark.parametrize(
    ("convolve", "kernel"),
    [(_shifted, (1, 5)), (_shifted, (1, 1, 5)), (_banded, (1, 5)), (dense_convolution, (5, 1, 1))],
)
def test_bfloat16_stays_bfloat16_and_sums_in_float32(convolve, kernel):
    value = jnp.ones((1, 9, 1) if convolve is dense_convolution else (1, 9, 1, 1), jnp.bfloat16)
    weights = jnp.array([256, 1, -256, 1, 256], jnp.bfloat16).reshape(kernel)
    output = jax.jit(convolve)(value, weights)
    assert output.dtype == jnp.bfloat16
    assert float(output[0, 4].sum()) == 258  # 256 + 1 is 256 in bfloat16


def test_the_convolution_of_a_short_example_reads_padding_only_without_its_mask(rngs):
    query, key, value = random_inputs(rngs, 2, 5, HEADS, DIM)
    kernel, mask = normal(next(rngs), (HEADS, 3)), jnp.arange(5)[None] < jnp.array([[5], [3]])
    attend = functools.partial(nystrom_attention, query, key, value, num_landmarks=5, mask=mask)
    for mask_conv, read in ((False, value), (True, jnp.where(mask[..., None, None], value, 0))):
        output = attend(conv_kernel=kernel, mask_conv=mask_conv)
        expected = attend() + depthwise_convolution(read, kernel)
        assert_close(output[mask], expected[mask], REFERENCE)


@pytest.mark.usefixtures("one_device")
def test_gradient_of_a_batch_on_an_explicit_axis_of_one_device(rngs):
    """The default axes of `jax.make_mesh`; a loop over them would be an error."""
    value, kernel = normal(next(rngs), (4, 11, HEADS, DIM)), normal(next(rngs), (HEADS, 5))
    gradients = jax.jit(jax.grad(lambda *x: (depthwise_convolution(*x) ** 2).sum(), (0, 1)))
    expected = gradients(value, kernel)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    with jax.set_mesh(mesh):
        split = jax.device_put(value, NamedSharding(mesh, P("data")))
        actual = gradients(split, jax.device_put(kernel, P()))
    assert_close(jax.tree.map(np.asarray, actual), expected, REFERENCE)


@per_head_and_channel
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


@pytest.mark.slow_except("channel")
@pytest.mark.usefixtures("one_device")
@per_head_and_channel
def test_vmap_and_jit_change_nothing(rngs, groups):
    """With a kernel per row of the mapped axis, forward and backward."""
    value = normal(next(rngs), (2, 3, 11, HEADS, DIM))
    kernel = normal(next(rngs), (2, *groups, 5))

    def run(value, kernel):
        output, pull_back = jax.vjp(depthwise_convolution, value, kernel)
        return output, pull_back(jnp.sin(output))

    each = [jax.jit(run)(*pair) for pair in zip(*jax.device_get((value, kernel)), strict=True)]
    expected = jax.tree.map(lambda *leaves: np.stack(leaves), *each)
    assert_close(jax.jit(jax.vmap(run))(value, kernel), expected, REFERENCE)


@pytest.mark.parametrize("form", [_sum_of_matmuls, _lax_convolution])
@pytest.mark.parametrize(("length", "width", "dilation"), [(3, 7, 1), (31, 5, 3)])
def test_dense_convolution_equals_the_formula_of_the_docstring(rngs, form, length, width, dilation):
    """Forward and backward, from 5 channels to 7."""
    x = normal(next(rngs), (2, length, 5))
    kernel = normal(next(rngs), (width, 5, 7))
    tangent = normal(next(rngs), (2, length, 7))

    def plain(x, kernel):
        padded = jnp.pad(x, ((0, 0), (dilation * (width // 2),) * 2, (0, 0)))
        windows = jnp.stack([padded[:, dilation * w :][:, :length] for w in range(width)])
        return jnp.einsum("WBLE,WEF->BLF", windows, kernel)

    actual, expected = (
        forward_and_gradients(f, (x, kernel), tangent)
        for f in (functools.partial(form, dilation=dilation), plain)
    )
    assert_close(actual, expected, REFERENCE)
