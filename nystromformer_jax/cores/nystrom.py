"""Nyström attention with the convolution of the value."""

import functools

import flax.linen as nn
import jax

from nystromformer_jax.attention import find_landmarks, nystrom_attention
from nystromformer_jax.cores.convolution import conv_kernel_param
from nystromformer_jax.inputs import (
    Implementation,
    LandmarkOptions,
    check_inputs,
    check_query_mask,
)
from nystromformer_jax.landmarks import Layout
from nystromformer_jax.pinv import Start, pinv_residual
from nystromformer_jax.sequence_parallel import SEQUENCE_AXIS, sharded_nystrom_attention
from nystromformer_jax.typing import Array, Bool, Float


class NystromAttention(nn.Module):
    """Attends through landmarks, in O(L + T). L ≠ T works without the convolution.

    With the collection "diagnostics" mutable it sows `pinv_residual` [B H], see there.

    Attributes:
      num_landmarks: M.
      conv_kernel_size: Width of the value's convolution, odd; 0 for none. The paper has 35 on LRA.
      pinv_iters: See `nystrom_attention`, as for what follows.
      pinv_start: `"exact"` or `"batch_max"`.
      landmark_layout: `"real"`, `"mlpen"` or `"hf"`.
      mask_conv: Whether the convolution sees zeros at padding.
      normalize_rows: Whether rows of the attention map are made to sum to one.
      implementation: `"auto"`, `"xla"` or `"pallas_tpu"`; see `nystrom_attention`.
      sequence_axis: `"sequence"`: the length is split over that axis of the ambient mesh
        (`jax.set_mesh`), see `sharded_nystrom_attention`. None: it is whole.
    """

    num_landmarks: int = 64
    conv_kernel_size: int = 0
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    mask_conv: bool = True
    normalize_rows: bool = False
    implementation: Implementation = "auto"
    sequence_axis: str | None = None

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
        """Attends; see `nystromformer_jax.nystrom_attention`. There is nothing random in it."""
        del deterministic
        check_inputs(query, key, value, mask)
        if self.sequence_axis not in (None, SEQUENCE_AXIS):
            raise ValueError(
                f"sequence_axis must be {SEQUENCE_AXIS!r} or None: the layers around the attention look"
                f" for an axis of that name; got {self.sequence_axis!r}. Name the mesh's axis so, or"
                " call sharded_nystrom_attention itself, which takes any."
            )
        if self.is_mutable_collection("diagnostics") and not self.is_initializing():
            self.sow("diagnostics", "pinv_residual", self._residual(query, key, mask, query_mask))
        attend = nystrom_attention
        if self.sequence_axis is not None and not self.is_initializing():
            mesh = jax.sharding.get_abstract_mesh()
            if self.sequence_axis not in mesh.shape:
                raise ValueError(
                    f"sequence_axis={self.sequence_axis!r} needs a mesh with that axis around the call:"
                    f" with jax.set_mesh(mesh): …; the axes there are {mesh.axis_names}."
                )
            attend = functools.partial(
                sharded_nystrom_attention, mesh=mesh, axis=self.sequence_axis
            )
        return attend(
            query,
            key,
            value,
            num_landmarks=self.num_landmarks,
            mask=mask,
            query_mask=query_mask,
            pinv_iters=self.pinv_iters,
            pinv_start=self.pinv_start,
            landmark_layout=self.landmark_layout,
            conv_kernel=conv_kernel_param(self, self.conv_kernel_size, query),
            mask_conv=self.mask_conv,
            normalize_rows=self.normalize_rows,
            implementation=self.implementation,
        )

    def _residual(
        self, query: Array, key: Array, mask: Array | None, query_mask: Array | None
    ) -> Float[Array, "B H"]:
        query_mask = check_query_mask(query, key, mask, query_mask)
        options = LandmarkOptions(
            num_landmarks=self.num_landmarks,
            pinv_iters=self.pinv_iters,
            pinv_start=self.pinv_start,
            landmark_layout=self.landmark_layout,
        )
        options.check(query, key)
        query, key = options.seen(query, query_mask), options.seen(key, mask)
        landmarks = find_landmarks(query, key, mask, query_mask, options)
        return pinv_residual(landmarks.kernel_2, landmarks.inverse)
