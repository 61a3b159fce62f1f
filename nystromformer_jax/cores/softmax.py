"""Softmax attention, optionally with attention dropout and the convolution of the value."""

from nystromformer_jax.attention.checks import check_inputs, check_query_mask, zero_padding
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.attention.functions import softmax_weights
from nystromformer_jax.attention.stages import weighted_values
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import ConvGroups, add_value_convolution
from nystromformer_jax.typing import Array


class SoftmaxAttention(AttentionCore):
    """Exact softmax attention, in O(L T). Supports L ≠ T without the convolution.

    Attributes:
      conv_kernel_size: Width of the convolution of the value, odd; 0 for none.
      conv_groups: One kernel per `"head"` or per `"channel"`.
      mask_conv: If True, the convolution reads zeros at padding; see `nystrom_attention`. If False, rows
        of padded queries are also computed, as in Hugging Face's exact mode, because the convolution of
        the next layer reads them.
      dropout_rate: Dropout of the attention weights, as in BERT and in the paper's softmax baseline.
    """

    conv_kernel_size: int = 0
    conv_groups: ConvGroups = "head"
    mask_conv: bool = True
    dropout_rate: float = 0.0

    @property
    def needs_dropout_rng(self) -> bool:
        return bool(self.dropout_rate)

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        query, key, value, mask, query_mask = inputs
        check_inputs(query, key, value, mask)
        query_mask = check_query_mask(query, key, mask, query_mask)
        if self.mask_conv:
            query = zero_padding(query, query_mask)
        key, value = zero_padding(key, mask), zero_padding(value, mask)
        weights = softmax_weights(query, key, mask)
        weights = Dropout(self.dropout_rate)(weights, deterministic=deterministic)
        output = weighted_values(weights, value).astype(query.dtype)
        return add_value_convolution(self, output, inputs, mask_conv=self.mask_conv)
