"""The parameter of the value's convolution, for every core that has one."""

import flax.linen as nn
import jax

from nystromformer_jax.typing import Array, Float

# The authors' Conv2d keeps PyTorch's default: uniform in ±1/√W, of variance 1/(3 W).
conv_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=1, out_axis=0)


def conv_kernel_param(
    core: nn.Module, width: int, query: Float[Array, "B L H D"]
) -> Float[Array, "H W"] | None:
    """The core's parameter `conv_kernel`, or None where `width` is 0.

    Raises:
      ValueError: An even or negative width.
    """
    if type(width) is int and width == 0:
        return None
    if type(width) is not int or width < 0 or width % 2 == 0:
        raise ValueError(
            f"conv_kernel_size must be odd (so that the kernel has a centre), or 0 for none; got {width!r}."
        )
    kernel: jax.Array = core.param("conv_kernel", conv_init, (query.shape[2], width))
    return kernel.astype(query.dtype)
