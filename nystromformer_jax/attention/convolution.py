"""Convolutions along the sequence: depthwise (one kernel per head or channel) and dense."""

import functools

import jax
import jax.numpy as jnp
from flax.typing import PrecisionLike

from nystromformer_jax.attention.checks import accum_dtype, check_array, check_kernel, pad_length
from nystromformer_jax.typing import Array, Float

# Rows of the band matrix. Longer blocks multiply more zeros; shorter blocks read more halo positions.
BLOCK_ROWS = 128  # size of a TPU's matrix unit
# On a CPU the kernel gradient takes 17 to 24 ms with 32 rows and 23 to 33 ms with 64
# (batch 32, 2,048 tokens of 64 channels, W from 7 to 67, two cores of an AMD EPYC).
CPU_BLOCK_ROWS = 32
# Maximum number of weights of a per-channel kernel that fit in a CPU's L1 cache, of 32 KB.
CACHED_WEIGHTS = 8192
# Maximum width of a per-head kernel for shifted copies on a CPU; wider ones use the band matrix.
MAX_SHIFTS = 65


def depthwise_convolution(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"] | Float[Array, "H D W"]
) -> Float[Array, "B L H D"]:
    """Cross-correlates each head or channel with a separate kernel, with zero padding.

        output[l, h, d] = Σ_w kernel[h, w]    · value[l + w − W // 2, h, d]     kernel [H W]
        output[l, h, d] = Σ_w kernel[h, d, w] · value[l + w − W // 2, h, d]     kernel [H D W]

    With one kernel per head, blocks of the sequence with a halo of W // 2 positions are multiplied by
    a band matrix. With one kernel per channel, and on a CPU up to W = `MAX_SHIFTS`, shifted copies are
    added instead. On a CPU a grouped `lax` convolution takes 3–12 times as long as the complete attention,
    mostly in the backward pass. Supports reverse-mode differentiation.

    Raises:
      ValueError: The kernel has an even width or an invalid shape, or a dtype is unsupported.

    Source: Xiong et al. 2021, arXiv:2102.03902, section "Analysis of Nyström approximation" (skip
    connection of V). The authors' code uses a `Conv2d` of kernel (W, 1), one group per head, no bias.
    One kernel per channel is from So et al. 2021 (Primer), arXiv:2109.08668.
    """
    value, kernel = jnp.asarray(value), jnp.asarray(kernel)
    check_array("value", value, "batch, length, heads, head_dim")
    check_kernel("kernel", kernel, value.shape[2:])
    return convolve(value, kernel)


def convolve(value: Float[Array, "B L H D"], kernel: Array) -> Float[Array, "B L H D"]:
    """Computes `depthwise_convolution` for validated arguments."""
    return _compiled_convolve(*_vary_alike(value, kernel))


def _vary_alike(*arrays: Array) -> list[Array]:
    """Returns the arrays, each varying over the mesh axes over which any of them varies.

    Under `shard_map` a gradient must vary like its argument. That of a kernel is also summed over devices.
    """
    own = [jax.typeof(x).manual_axis_type.varying for x in arrays]
    missing = [tuple(sorted(frozenset().union(*own) - axes)) for axes in own]
    return [
        jax.lax.pcast(x, axes, to="varying") if axes else x
        for x, axes in zip(arrays, missing, strict=True)
    ]


@jax.custom_vjp
def _convolve(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"] | Float[Array, "H D W"]
) -> Float[Array, "B L H D"]:
    if kernel.ndim == 3:
        return _shifted(value, kernel)
    if kernel.shape[-1] > MAX_SHIFTS:
        return _banded(value, kernel)
    return jax.lax.platform_dependent(value, kernel, cpu=_shifted, default=_banded)


def _convolve_forward(value: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(value, kernel), (value, kernel)


def _convolve_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    # With several devices, a loop over the examples would gather a sharded batch. On an Explicit axis it is
    # an error, also with one device.
    is_split = jax.typeof(cotangent).sharding.spec[0] is not None
    loops = jax.device_count() == 1 and not is_split
    return _gradients(*residuals, cotangent, loops=loops)


@functools.partial(jax.jit, static_argnames="loops", inline=True)
def _gradients(
    value: Array, kernel: Array, cotangent: Array, *, loops: bool
) -> tuple[Array, Array]:
    """Returns the gradients of value and kernel; with `loops`, a CPU takes one example at a time."""
    default = _batched_correlation if kernel.ndim == 3 else _banded_gradient
    cpu = _looped_correlation if loops else default
    kernel_gradient = jax.lax.platform_dependent(value, kernel, cotangent, cpu=cpu, default=default)
    return _convolve(cotangent, kernel[..., ::-1]), kernel_gradient


_convolve.defvjp(_convolve_forward, _convolve_backward)
# Compiled as one program outside of jit, like the gradient. Inside, it becomes part of the caller's program.
_compiled_convolve = jax.jit(_convolve, inline=True)


def _shifted(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"] | Float[Array, "H D W"]
) -> Float[Array, "B L H D"]:
    """Convolves by adding W shifted copies of the value, each multiplied by one weight."""
    length, width, shape = value.shape[1], kernel.shape[-1], value.shape
    accumulator = accum_dtype(value.dtype)
    kernel = kernel.astype(value.dtype).astype(accumulator)
    if kernel.ndim == 3 and kernel.size <= CACHED_WEIGHTS:
        # The barrier makes XLA store all channels in the last axis, so that they are read as vectors.
        weights = list(jax.lax.optimization_barrier(jnp.moveaxis(kernel, -1, 0)).reshape(width, -1))
        value = value.reshape(*shape[:2], -1)
    else:
        weights = [(kernel if kernel.ndim == 3 else kernel[:, None])[..., w] for w in range(width)]
    halo = (width // 2, width // 2)
    padded = jnp.pad(value, ((0, 0), halo, *[(0, 0)] * (value.ndim - 2)))
    output = jnp.zeros(value.shape, accumulator)
    for shift, weight in enumerate(weights):
        output += padded[:, shift : shift + length].astype(accumulator) * weight[None, None]
    return output.astype(value.dtype).reshape(shape)


def _banded(value: Float[Array, "B L H D"], kernel: Float[Array, "H W"]) -> Float[Array, "B L H D"]:
    """Convolves by multiplying blocks with halos by the band matrix."""
    batch, length, num_heads, head_dim = value.shape
    halo = kernel.shape[1] // 2
    rows = max(min(BLOCK_ROWS, length), halo, 1)
    num_blocks = -(-length // rows)
    blocks = pad_length(value, rows).reshape(batch, num_blocks, rows, num_heads, head_dim)
    before = jnp.pad(blocks[:, :-1, rows - halo :], ((0, 0), (1, 0), (0, 0), (0, 0), (0, 0)))
    after = jnp.pad(blocks[:, 1:, :halo], ((0, 0), (0, 1), (0, 0), (0, 0), (0, 0)))
    with_halo = jnp.concatenate([before, blocks, after], axis=2)
    output = jnp.einsum(
        "HST,BKTHD->BKSHD",
        band_matrix(kernel.astype(value.dtype), rows, rows + 2 * halo),
        with_halo,
        preferred_element_type=accum_dtype(value.dtype),
    )
    output = output.reshape(batch, num_blocks * rows, num_heads, head_dim)
    return output[:, :length].astype(value.dtype)


def _banded_gradient(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"], cotangent: Float[Array, "B L H D"]
) -> Float[Array, "H W"]:
    """Returns the gradient with respect to a kernel [H, W], computed with the band matrix."""
    _, pull_back = jax.vjp(lambda kernel: _banded(value, kernel), kernel)
    gradient: Array = pull_back(cotangent)[0]
    return gradient


def band_matrix(
    kernel: Float[Array, "H W"], rows: int, columns: int, offset: int = 0
) -> Float[Array, "H S T"]:
    """Returns the band matrix with the kernel in columns s + offset … s + offset + W − 1 of row s.

    Each row is the previous row shifted right by one. It is built by repeating one row with a period of
    T + 1, because the gradient of this operation is a sum instead of a scatter.
    """
    num_heads, width = kernel.shape
    period = jnp.pad(kernel, ((0, 0), (offset, columns + 1 - offset - width)))
    return jnp.tile(period, (1, rows))[:, : rows * columns].reshape(num_heads, rows, columns)


def _looped_correlation(
    value: Float[Array, "B L H D"], kernel: Array, cotangent: Float[Array, "B L H D"]
) -> Array:
    """Returns the kernel gradient, computed one example at a time so that it fits in cache."""
    correlate = functools.partial(_correlation, width=kernel.shape[-1], rows=CPU_BLOCK_ROWS)

    def add(total: Array, example: tuple[Array, Array]) -> tuple[Array, None]:
        return total + correlate(*example), None

    shape = jax.eval_shape(correlate, value[0], cotangent[0])
    # 0 · cotangent: under `shard_map` the carry must vary over the same mesh axes as the addend.
    start = jnp.zeros(shape.shape, shape.dtype) + 0 * cotangent[0, 0, 0, 0].astype(shape.dtype)
    total = jax.lax.scan(add, start, (value, cotangent))[0]
    return _sum_of_channels(total, kernel)


def _batched_correlation(
    value: Float[Array, "B L H D"], kernel: Array, cotangent: Float[Array, "B L H D"]
) -> Array:
    """Returns the kernel gradient, computed for all examples at once."""
    correlate = functools.partial(_correlation, width=kernel.shape[-1], rows=BLOCK_ROWS)
    return _sum_of_channels(jax.vmap(correlate)(value, cotangent).sum(axis=0), kernel)


def _sum_of_channels(gradient: Float[Array, "H D W"], kernel: Array) -> Array:
    return (gradient if kernel.ndim == 3 else gradient.sum(axis=1)).astype(kernel.dtype)


def _correlation(
    value: Float[Array, "L H D"], cotangent: Float[Array, "L H D"], *, width: int, rows: int
) -> Float[Array, "H D W"]:
    """Returns Σ_l cotangent[l] · value[l + w − W // 2] for each channel and each w.

    For each channel, blocks of the cotangent are multiplied by windows of the value. Each diagonal of the
    resulting matrix has the products for one w.
    """
    length, num_heads, head_dim = value.shape
    halo = width // 2
    rows = max(min(rows, length), halo, 1)
    num_blocks = -(-length // rows)
    behind = num_blocks * rows - length

    def channels(x: Array, before: int, after: int) -> Float[Array, "C L"]:
        return jnp.pad(x.reshape(length, -1).T, ((0, 0), (before, after)))

    # Three adjacent blocks of `rows` positions contain any window of rows + W − 1 positions.
    padded = channels(value, halo, behind + 2 * rows)
    blocks = [
        padded[:, k * rows : (k + num_blocks) * rows].reshape(-1, num_blocks, rows)
        for k in range(3)
    ]
    columns = rows + width - 1
    windows = jnp.concatenate(blocks, axis=-1)[..., :columns]
    products = jnp.einsum(
        "CKS,CKT->CST",
        channels(cotangent, 0, behind).reshape(-1, num_blocks, rows),
        windows,
        preferred_element_type=accum_dtype(value.dtype),
    )
    # Reshaping to rows that are longer by one moves the diagonal that starts at w to column w.
    skewed = jnp.pad(products.reshape(-1, rows * columns), ((0, 0), (0, rows)))
    gradient = skewed.reshape(-1, rows, columns + 1)[..., :width].sum(axis=1)
    return gradient.reshape(num_heads, head_dim, width)


def dense_convolution(
    x: Float[Array, "B L E"],
    kernel: Float[Array, "W E F"],
    dilation: int = 1,
    precision: PrecisionLike = None,
) -> Float[Array, "B L F"]:
    """Computes a dense (not depthwise) convolution with zero padding; W odd.

        output[l] = Σ_w x[l + dilation (w − W // 2)] @ kernel[w]

    On a CPU it is computed as W matmuls: inside a loop, such as gradient accumulation, a `lax` convolution
    takes 17 times as long on XLA's CPU backend.
    """
    return jax.lax.platform_dependent(
        x,
        kernel,
        cpu=functools.partial(_sum_of_matmuls, dilation=dilation, precision=precision),
        default=functools.partial(_lax_convolution, dilation=dilation, precision=precision),
    )


def _sum_of_matmuls(
    x: Float[Array, "B L E"],
    kernel: Float[Array, "W E F"],
    dilation: int,
    precision: PrecisionLike = None,
) -> Float[Array, "B L F"]:
    batch, length, features = x.shape
    width = len(kernel)
    accumulator = accum_dtype(x.dtype)
    padded = jnp.pad(x, ((0, 0), (width // 2 * dilation,) * 2, (0, 0)))
    output = jnp.zeros((batch * length, kernel.shape[2]), accumulator)
    for tap in range(width):
        shift = tap * dilation
        rows = padded[:, shift : shift + length].reshape(-1, features)
        output += jnp.matmul(
            rows, kernel[tap], precision=precision, preferred_element_type=accumulator
        )
    return output.reshape(batch, length, -1).astype(x.dtype)


def _lax_convolution(
    x: Float[Array, "B L E"],
    kernel: Float[Array, "W E F"],
    dilation: int,
    precision: PrecisionLike = None,
) -> Float[Array, "B L F"]:
    output: Array = jax.lax.conv_general_dilated(
        x,
        kernel,
        (1,),
        "SAME",
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
        precision=precision,
    )
    return output
