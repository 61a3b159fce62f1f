"""Nyström attention with the convolution of the value."""

from nystromformer_jax.attention.arguments import Inputs, check_arguments, mask_inputs
from nystromformer_jax.attention.checks import check_convolution
from nystromformer_jax.attention.functions import attend_locally, find_landmarks
from nystromformer_jax.attention.options import NystromOptions, options_of
from nystromformer_jax.attention.pinv import pinv_residual
from nystromformer_jax.attention.sequence_parallel import (
    SEQUENCE_AXIS,
    attend_sharded,
    reshard_length,
    sequence_mesh,
)
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import ConvGroups, conv_kernel_param
from nystromformer_jax.support.values import Implementation
from nystromformer_jax.typing import Array, Float


class NystromAttention(AttentionCore, NystromOptions, kw_only=True):
    """Nyström attention, in O(L + T). Supports L ≠ T without the convolution.

    If the ambient mesh (`jax.set_mesh`) has an axis "sequence", the length is split over its devices, see
    `sharded_nystrom_attention`. It is not split inside a `shard_map` over that axis. At initialization, it is
    split only over an Explicit axis.

    If the collection "diagnostics" is mutable, `pinv_residual` [B H] is sown into it.

    Attributes, besides the options of `nystrom_attention`, which are inherited:
      conv_kernel_size: Width of the convolution of the value, odd; 0 for none. The authors use 35 on LRA.
      conv_groups: One kernel per `"head"`, as in the paper, or per `"channel"`.
    """

    conv_kernel_size: int = 0
    conv_groups: ConvGroups = "head"
    implementation: Implementation = "auto"

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        # At initialization, the inputs can be split already only if the axis is Explicit.
        mesh = sequence_mesh(explicit_only=self.is_initializing())
        options = options_of(self)
        arrays = Inputs(*inputs, conv_kernel=None)
        check_arguments(arrays, options, self.implementation, split_length=mesh is not None)
        conv_kernel = conv_kernel_param(self, inputs.query)
        check_convolution(inputs.query, inputs.key, conv_kernel)
        if self.is_mutable_collection("diagnostics") and not self.is_initializing():
            whole = arrays
            if mesh is not None:
                whole = Inputs._make(
                    reshard_length(x, mesh, SEQUENCE_AXIS, split=False) for x in arrays
                )
            self.sow("diagnostics", "pinv_residual", _residual(whole, options))
        arrays = arrays._replace(conv_kernel=conv_kernel)
        if mesh is None:
            return attend_locally(arrays, options, self.implementation)
        return attend_sharded(arrays, options, self.implementation, mesh)


def _residual(inputs: Inputs, options: NystromOptions) -> Float[Array, "B H"]:
    """Returns the `pinv_residual` of kernel_2."""
    mask, query_mask = inputs.mask, inputs.query_mask
    query = mask_inputs(inputs.query, query_mask, options)
    key = mask_inputs(inputs.key, mask, options)
    landmarks = find_landmarks(query, key, mask, query_mask, options)
    return pinv_residual(landmarks.kernel_2, landmarks.inverse)
