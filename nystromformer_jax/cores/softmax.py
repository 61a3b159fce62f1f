"""Exact softmax attention, optionally with dropout on its weights and the convolution of the value."""

import flax.linen as nn

from nystromformer_jax.attention import add_convolution, softmax_weights
from nystromformer_jax.cores.convolution import conv_kernel_param
from nystromformer_jax.dropout import Dropout
from nystromformer_jax.inputs import (
    check_convolution,
    check_inputs,
    check_query_mask,
    where_real,
)
from nystromformer_jax.steps import weighted_values
from nystromformer_jax.typing import Array, Bool, Float


class SoftmaxAttention(nn.Module):
    """Attends exactly, in O(L T). L ≠ T works without the convolution.

    Attributes:
      conv_kernel_size: Width of the value's convolution, odd; 0 for none.
      mask_conv: Whether the convolution sees zeros at padding; see `nystrom_attention`. False lets padded
        queries ask, too, as in Hugging Face's exact mode: the convolution of the next layer reads them.
      dropout_rate: Of the attention weights, as in BERT and in the paper's softmax rows.
    """

    conv_kernel_size: int = 0
    mask_conv: bool = True
    dropout_rate: float = 0.0

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "B L H D"],
        key: Float[Array, "B T H D"],
        value: Float[Array, "B T H D"],
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L H D"]:
        """Attends; see `nystromformer_jax.softmax_attention`."""
        check_inputs(query, key, value, mask)
        query_mask = check_query_mask(query, key, mask, query_mask)
        conv_kernel = conv_kernel_param(self, self.conv_kernel_size, query)
        check_convolution(query, key, conv_kernel)
        conv_value = value
        if self.mask_conv:
            query, conv_value = where_real(query, query_mask), where_real(value, mask)
        key, value = where_real(key, mask), where_real(value, mask)
        weights = softmax_weights(query, key, mask)
        weights = Dropout(self.dropout_rate)(weights, deterministic=deterministic)
        output = weighted_values(weights, value).astype(query.dtype)
        return add_convolution(output, conv_value, conv_kernel)
