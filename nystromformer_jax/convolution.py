"""Depthwise convolution along the sequence, one kernel a head, fast in both directions."""

import functools

import jax
import jax.numpy as jnp

from nystromformer_jax.typing import Array, Float

# Rows of the band matrix. Longer blocks multiply more zeros, shorter ones more often read the halo.
BLOCK_ROWS = 128  # fills a TPU's matrix unit
# Of the kernel's gradient on a CPU: 12, 14, 16 and 23 ms with 32, 64, 128 and 256 in the paper's ListOps.
CPU_GRADIENT_ROWS = 32
# Up to this width a CPU is three to five times as fast by adding shifted copies, in one fused loop.
MAX_SHIFTS = 65


def depthwise_convolution(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"]
) -> Float[Array, "B L H D"]:
    """Cross-correlates each head with its own kernel; outside the sequence lie zeros.

        output[l, h, d] = Σ_w kernel[h, w] · value[l + w − W // 2, h, d]

    Blocks of the sequence, each with a halo of W // 2 positions, are multiplied by a band matrix; on
    a CPU shifted copies are added instead, but for the kernel's gradient, which is 35 reductions that
    way and one matmul this way. A grouped `lax` convolution is 3–12 times the cost of the whole
    attention on a CPU, above all backwards. Differentiable in reverse mode.

    Raises:
      ValueError: A kernel of even width, or not one kernel a head; values that are no floats.

    Source: Xiong et al. 2021, arXiv:2102.03902, section "Analysis of Nyström approximation" (the
    skip connection of V); in the authors' code a `Conv2d` of kernel (W, 1), one group a head, no bias.
    """
    value, kernel = jnp.asarray(value), jnp.asarray(kernel)
    if value.ndim != 4 or 0 in value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "value must be [batch, length, heads, head_dim] of a floating-point type, no axis empty; got"
            f" {value.shape} of {value.dtype}."
        )
    check_kernel(kernel, value.shape[2])
    return _convolve(value, kernel)


@jax.custom_vjp
def _convolve(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"]
) -> Float[Array, "B L H D"]:
    if kernel.shape[1] > MAX_SHIFTS:
        return _banded(value, kernel)
    return jax.lax.platform_dependent(value, kernel, cpu=_shifted, default=_banded)


def _convolve_forward(value: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _convolve(value, kernel), (value, kernel)


def _convolve_backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    value, kernel = kept
    cpu, default = (
        functools.partial(_kernel_gradient, block_rows=rows)
        for rows in (CPU_GRADIENT_ROWS, BLOCK_ROWS)
    )
    kernel_gradient = jax.lax.platform_dependent(value, kernel, cotangent, cpu=cpu, default=default)
    return _convolve(cotangent, kernel[:, ::-1]), kernel_gradient


_convolve.defvjp(_convolve_forward, _convolve_backward)


def _shifted(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"]
) -> Float[Array, "B L H D"]:
    """The sum as it is written: W shifted copies, each times its weight."""
    length, width = value.shape[1], kernel.shape[1]
    halo = width // 2
    accumulator = jnp.promote_types(value.dtype, jnp.float32)
    padded = jnp.pad(value, ((0, 0), (halo, halo), (0, 0), (0, 0)))
    weights = kernel.astype(value.dtype).astype(accumulator)[None, None, :, :, None]
    output = jnp.zeros(value.shape, accumulator)
    for shift in range(width):
        output += padded[:, shift : shift + length].astype(accumulator) * weights[:, :, :, shift]
    return output.astype(value.dtype)


def _kernel_gradient(
    value: Float[Array, "B L H D"],
    kernel: Float[Array, "H W"],
    cotangent: Float[Array, "B L H D"],
    *,
    block_rows: int,
) -> Float[Array, "H W"]:
    """What the cotangent says of the kernel."""
    _, pull_back = jax.vjp(lambda kernel: _banded(value, kernel, block_rows), kernel)
    gradient: Array = pull_back(cotangent)[0]
    return gradient


def _banded(
    value: Float[Array, "B L H D"], kernel: Float[Array, "H W"], block_rows: int = BLOCK_ROWS
) -> Float[Array, "B L H D"]:
    """Blocks with their halos, times a band matrix."""
    batch, length, num_heads, head_dim = value.shape
    halo = kernel.shape[1] // 2
    rows = max(min(block_rows, length), halo, 1)
    num_blocks = -(-length // rows)
    blocks = jnp.pad(value, ((0, 0), (0, num_blocks * rows - length), (0, 0), (0, 0)))
    blocks = blocks.reshape(batch, num_blocks, rows, num_heads, head_dim)
    before = jnp.pad(blocks[:, :-1, rows - halo :], _one_block(first=True))
    after = jnp.pad(blocks[:, 1:, :halo], _one_block(first=False))
    with_halo = jnp.concatenate([before, blocks, after], axis=2)
    output = jnp.einsum(
        "HST,BKTHD->BKSHD",
        _band(kernel.astype(value.dtype), rows),
        with_halo,
        preferred_element_type=jnp.promote_types(value.dtype, jnp.float32),
    )
    output = output.reshape(batch, num_blocks * rows, num_heads, head_dim)
    return output[:, :length].astype(value.dtype)


def check_kernel(kernel: Array, num_heads: int) -> None:
    """Refuses a convolution kernel that is not `[H W]` with W odd, in words."""
    if kernel.ndim != 2 or kernel.shape[0] != num_heads or kernel.shape[1] % 2 == 0:
        raise ValueError(
            f"conv_kernel must be [H W] with H = {num_heads} heads and W odd (so that it has a"
            f" centre), got shape {tuple(kernel.shape)}."
        )
    if not jnp.issubdtype(kernel.dtype, jnp.floating):
        raise ValueError(f"conv_kernel must be of a floating-point type, got {kernel.dtype}.")


def _one_block(*, first: bool) -> list[tuple[int, int]]:
    """Pads the axis of blocks by one, in front or behind."""
    return [(0, 0), (1, 0) if first else (0, 1), (0, 0), (0, 0), (0, 0)]


def _band(kernel: Float[Array, "H W"], rows: int) -> Float[Array, "H S T"]:
    """The matrix whose row s holds the kernel in columns s … s + W − 1, S = rows, T = rows + W − 1.

    Each row is the one above moved right by one. Repeating `[kernel, zeros]` with a period one
    longer than a row does just that, and its gradient is a sum, not a scatter.
    """
    num_heads, width = kernel.shape
    columns = rows + width - 1
    period = jnp.pad(kernel, ((0, 0), (0, rows)))
    return jnp.tile(period, (1, rows))[:, : rows * columns].reshape(num_heads, rows, columns)
