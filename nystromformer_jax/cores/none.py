"""Ablation baseline without attention: only the convolution of the value."""

from typing import ClassVar

import jax.numpy as jnp

from nystromformer_jax.attention.checks import check_inputs, check_query_mask
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import ConvGroups, add_value_convolution
from nystromformer_jax.typing import Array


class NoAttention(AttentionCore):
    """Returns the convolution of the value, or zeros without a convolution.

    This core is a baseline to measure the contribution of attention to accuracy.

    Attributes:
      conv_kernel_size: Width of the convolution of the value, odd; 0 for none.
      conv_groups: One kernel per `"head"` or per `"channel"`.
    """

    reads_value_only: ClassVar = True

    conv_kernel_size: int = 0
    conv_groups: ConvGroups = "head"

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        query, key, value, mask, query_mask = inputs
        check_inputs(query, key, value, mask, split_length=not self.conv_kernel_size)
        check_query_mask(query, key, mask, query_mask)
        return add_value_convolution(self, jnp.zeros_like(query), inputs)
