"""Nyström attention with the convolution of the value."""

import dataclasses
import functools

from nystromformer_jax.attention.arguments import Options
from nystromformer_jax.attention.checks import check_inputs, check_query_mask
from nystromformer_jax.attention.functions import find_landmarks, nystrom_attention
from nystromformer_jax.attention.pinv import pinv_residual
from nystromformer_jax.attention.sequence_parallel import (
    SEQUENCE_AXIS,
    reshard_length,
    sequence_mesh,
    sharded_nystrom_attention,
)
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import ConvGroups, conv_kernel_param
from nystromformer_jax.support.values import Implementation, Layout, Selection, Start
from nystromformer_jax.typing import Array, Float


class NystromAttention(AttentionCore):
    """Nyström attention, in O(L + T). Supports L ≠ T without the convolution.

    If the ambient mesh (`jax.set_mesh`) has an axis "sequence", the length is split over its devices, see
    `sharded_nystrom_attention`. It is not split inside a `shard_map` over that axis. At initialization, it is
    split only over an Explicit axis.

    If the collection "diagnostics" is mutable, `pinv_residual` [B H] is sown into it.

    Attributes:
      num_landmarks: M. For this and attributes not listed here, see `nystrom_attention`.
      conv_kernel_size: Width of the convolution of the value, odd; 0 for none. The authors use 35 on LRA.
      conv_groups: One kernel per `"head"`, as in the paper, or per `"channel"`.
    """

    num_landmarks: int = 64
    conv_kernel_size: int = 0
    conv_groups: ConvGroups = "head"
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    landmark_selection: Selection = "segments"
    mask_conv: bool = True
    normalize_rows: bool = False
    implementation: Implementation = "auto"

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        check_inputs(*inputs[:4], split_length=True)
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(Options)}
        # At initialization, the inputs can be split already only if the axis is Explicit.
        mesh = sequence_mesh(explicit_only=self.is_initializing())
        if self.is_mutable_collection("diagnostics") and not self.is_initializing():
            whole = inputs
            if mesh is not None:
                whole = CoreInputs(
                    *(reshard_length(x, mesh, SEQUENCE_AXIS, split=False) for x in inputs)
                )
            self.sow("diagnostics", "pinv_residual", _residual(whole, Options(**given)))
        attend = nystrom_attention
        if mesh is not None:
            attend = functools.partial(sharded_nystrom_attention, mesh=mesh)
        return attend(
            **inputs._asdict(),
            **given,
            conv_kernel=conv_kernel_param(self, inputs.query),
            implementation=self.implementation,
        )


def _residual(inputs: CoreInputs, options: Options) -> Float[Array, "B H"]:
    """Returns the `pinv_residual` of kernel_2."""
    query, key, _, mask, query_mask = inputs
    query_mask = check_query_mask(query, key, mask, query_mask)
    options.check(query, key)
    query, key = options.mask_inputs(query, query_mask), options.mask_inputs(key, mask)
    landmarks = find_landmarks(query, key, mask, query_mask, options)
    return pinv_residual(landmarks.kernel_2, landmarks.inverse)
