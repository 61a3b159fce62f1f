"""Dense convolutions over the tokens, before the first block of an encoder."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
from flax.typing import PrecisionLike

from nystromformer_jax.attention.checks import check_array, zero_padding
from nystromformer_jax.attention.convolution import dense_convolution
from nystromformer_jax.layers.encoder import ACTIVATIONS, TOKENS, Layer, finite_padding
from nystromformer_jax.support.values import Activation, check_choice, check_size
from nystromformer_jax.typing import Array, Bool, Float


class ConvStem(Layer):
    """Layer norm and residual dense convolutions, which detect n-grams before the first block.

        x = layer_norm(x)
        x = x + activation(convolution(x))      for each kernel size

    Padding is zeroed before each convolution, so padding at the ends has no effect.

    Attributes:
      kernel_sizes: Number of taps of each convolution, odd.
      dilations: Distance between the taps of each convolution, in tokens; empty for 1. With the width of
        an image as the distance, a convolution reads a column of its pixels.
    """

    kernel_sizes: Sequence[int]
    activation: Activation = "gelu"
    layer_norm_epsilon: float = 1e-5
    dilations: Sequence[int] = ()

    @nn.compact
    def __call__(
        self, x: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None = None
    ) -> Float[Array, "B L E"]:
        """Applies the stem; `mask` is True at real tokens.

        Raises:
          ValueError: A kernel size is even, the number of dilations is wrong, the activation is unknown, or
            an input is invalid.
        """
        check_array("x", x, TOKENS)
        if self.dilations and len(self.dilations) != len(self.kernel_sizes):
            raise ValueError(
                f"dilations needs one number for each of the {len(self.kernel_sizes)} kernel_sizes, got"
                f" {len(self.dilations)}."
            )
        dilations = self.dilations or [1] * len(self.kernel_sizes)
        x = finite_padding(x, mask)
        check_choice("activation", self.activation, Activation)
        x = nn.LayerNorm(epsilon=self.layer_norm_epsilon, **self.dtypes, name="norm")(x)
        for index, (size, dilation) in enumerate(zip(self.kernel_sizes, dilations, strict=True)):
            check_size("kernel_sizes", size)
            check_size("dilations", dilation)
            if size % 2 == 0:
                raise ValueError(
                    f"kernel_sizes must be odd, so that they have a center; got {size}."
                )
            convolution = nn.Conv(
                x.shape[-1],
                (size,),
                **self.dense_options,
                kernel_dilation=(dilation,),
                conv_general_dilated=_dense_convolution,
                name=f"convolution_{index}",
            )
            x = x + ACTIVATIONS[self.activation](convolution(zero_padding(x, mask)))
        return x


def _dense_convolution(
    x: Float[Array, "B L E"],
    kernel: Float[Array, "W E E"],
    *_: Any,
    rhs_dilation: Sequence[int],
    precision: PrecisionLike,
    **__: Any,
) -> Float[Array, "B L E"]:
    """Computes a convolution for `nn.Conv`, which passes more arguments than are needed."""
    (dilation,) = rhs_dilation
    return dense_convolution(x, kernel, dilation, precision)
