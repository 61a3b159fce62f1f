"""Parameters and random keys shared by several cores."""

import functools
import zlib
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    check_conv_kernel_size,
    check_convolution,
    zero_padding,
)
from nystromformer_jax.attention.functions import add_convolution
from nystromformer_jax.cores.core import CoreInputs
from nystromformer_jax.support.values import check_choice, is_integer
from nystromformer_jax.typing import Array, Float

ConvGroups = Literal["head", "channel"]

# The default of PyTorch's Conv2d, which the authors use: uniform in ±1/√W, with variance 1/(3 W).
conv_init = functools.partial(
    nn.initializers.variance_scaling, 1 / 3, "fan_in", "uniform", in_axis=-1, out_axis=0
)


def conv_kernel_param(
    core: Any, query: Float[Array, "B L H D"]
) -> Float[Array, "H W"] | Float[Array, "H D W"] | None:
    """Creates the parameter `conv_kernel` of a core from `conv_kernel_size` and `conv_groups`.

    Returns None if the size is 0.

    Raises:
      ValueError: The size is even or negative, or `conv_groups` is unknown.
    """
    width, groups = core.conv_kernel_size, core.conv_groups
    check_choice("conv_groups", groups, ConvGroups)
    check_conv_kernel_size(width)
    if width == 0:
        return None
    num_heads, head_dim = query.shape[2:]
    shape, channels = (
        ((num_heads, width), ()) if groups == "head" else ((num_heads, head_dim, width), (1,))
    )
    kernel: jax.Array = core.param(
        "conv_kernel", conv_init(batch_axis=channels), shape, jnp.float32
    )
    return kernel.astype(query.dtype)


def add_value_convolution(
    core: Any, output: Float[Array, "B L H D"], inputs: CoreInputs, *, mask_conv: bool = True
) -> Float[Array, "B L H D"]:
    """Adds the convolution of the value, with the kernel of `conv_kernel_param`, to a core's output."""
    conv_kernel = conv_kernel_param(core, inputs.query)
    check_convolution(inputs.query, inputs.key, conv_kernel)
    value = zero_padding(inputs.value, inputs.mask) if mask_conv else inputs.value
    return add_convolution(output, value, conv_kernel)


def core_params(core: nn.Module, rng: Array, num_heads: int, head_dim: int) -> dict[str, Any]:
    """Returns initial parameters of a core, for which no input is needed.

    Raises:
      ValueError: The sizes of the parameters depend on the length of the input.
    """
    shapes = core_param_shapes(core, num_heads, head_dim)
    if shapes != core_param_shapes(core, num_heads, head_dim, multiple=2):
        raise ValueError(
            f"The parameters of {type(core).__name__} depend on the length of the input. Set its maximum in"
            " the factory, for example make_core('linformer', max_len=512)."
        )
    return _init(core, rng, _length(core), num_heads, head_dim) if shapes else {}


def core_param_shapes(
    core: nn.Module, num_heads: int, head_dim: int, *, multiple: int = 1
) -> dict[str, Any]:
    """Returns the parameters of `core_params` as shapes, for an input of `multiple` times its length."""
    length = multiple * _length(core)
    init = functools.partial(_init, core, length=length, num_heads=num_heads, head_dim=head_dim)
    shapes: dict[str, Any] = jax.eval_shape(init, jax.random.key(0))
    return shapes


def _length(core: nn.Module) -> int:
    """Returns a valid input length: some landmark layouts need a multiple of the number of landmarks."""
    landmarks = getattr(core, "num_landmarks", 1)
    return max(int(landmarks), 1) if is_integer(landmarks) else 1


# Jitted, so that layers with equal cores are compiled once and the attention is not computed.
@functools.partial(jax.jit, static_argnames=("core", "length", "num_heads", "head_dim"))
def _init(
    core: nn.Module, rng: Array, length: int, num_heads: int, head_dim: int
) -> dict[str, Any]:
    """Returns initial parameters of a core for an input of the given length."""
    tokens = jnp.zeros((1, length, num_heads, head_dim))
    variables = core.init(rng, tokens, tokens, tokens, deterministic=True)
    params: dict[str, Any] = nn.meta.unbox(variables).get("params", {})
    return params


def sampling_rng(core: nn.Module, seed: int, layer_name: str, *, redraw: bool) -> Array:
    """Returns a random key for `core` that differs between layers.

    With `redraw` the key comes from the stream "dropout". Otherwise it depends on `seed` and `layer_name`, so
    it is the same in every call. An empty name is the core's path, which layers of one `nn.scan` or `nn.vmap`
    share.
    """
    if redraw:
        return core.make_rng("dropout")
    name = layer_name or "/".join(core.path)
    # Random features are part of a trained model, so they do not depend on `jax_default_prng_impl`.
    rng = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(rng, zlib.crc32(name.encode()))
