"""Nyström attention on NVIDIA GPUs: two of its stages by cuDNN's fused attention.

Landmarks attend to all tokens in `collect`, and all tokens to the landmarks in `distribute`; the weights are
not written to memory. A mask of tokens becomes a bias, because cuDNN supports lengths or a bias.
"""

import functools
import re
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import AxisType

from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.checks import accum_dtype
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.target import target_device
from nystromformer_jax.typing import Array, Bool, Float, Int

MAX_HEAD_DIM = 128  # of the oldest supported generation
OLDEST = 8  # compute capability: Ampere
# Finite, so that a landmark without tokens does not get NaN, also after cuDNN's scaling by log₂ e.
MASKED_BIAS = {"bfloat16": -1e30, "float16": -3e4}

BACKEND: Literal["cudnn", "xla"] = "cudnn"  # tests on a CPU set "xla"


def unsupported(inputs: Inputs, options: NystromOptions) -> str:
    """Returns the reason why cuDNN does not support these arguments, or an empty string."""
    dtypes = {x.dtype.name for x in inputs[:3]}
    if len(dtypes) > 1 or not dtypes <= MASKED_BIAS.keys():
        return f"it supports float16 and bfloat16, not {', '.join(sorted(dtypes))}"
    _, length, _, head_dim = inputs.query.shape
    if head_dim % 8 or head_dim > MAX_HEAD_DIM:
        return f"it supports head dimensions in multiples of 8 up to {MAX_HEAD_DIM}, not {head_dim}"
    if options.normalize_rows:
        return "it does not support normalize_rows=True"
    sizes = (length, inputs.key.shape[1], options.num_landmarks)
    if not all(isinstance(size, int) for size in inputs.query.shape + inputs.key.shape):
        return "it needs fixed sizes"  # symbolic, in `jax.export`
    masked = inputs.mask is not None or inputs.explicit_query_mask is not None
    if masked and any(size % 2 for size in sizes):
        return "with a mask, it needs an even length and an even number of landmarks"
    mesh = jax.sharding.get_abstract_mesh()
    kinds = () if mesh.empty else zip(mesh.axis_names, mesh.axis_types, strict=True)
    if any(kind == AxisType.Explicit and mesh.shape[axis] > 1 for axis, kind in kinds):
        return "it does not support explicit mesh axes"
    return unavailable()


def unavailable() -> str:
    """Returns the reason why the target device cannot run cuDNN, or an empty string."""
    if BACKEND == "xla":
        return ""
    platform, kind = target_device()
    if platform not in ("gpu", "cuda"):
        return f"it needs an NVIDIA GPU, not {kind}"
    # Unknown if this machine only compiles for a GPU; not a number on GPUs of other makers.
    capability = str(getattr(jax.devices()[0], "compute_capability", OLDEST))
    if not re.fullmatch(r"[\d.]+", capability):
        return f"it needs an NVIDIA GPU, not {kind}"
    if float(capability) < OLDEST:
        return f"it needs a GPU of compute capability {OLDEST} or later, not {kind}"
    return "" if _is_installed() else "cuDNN is not installed"


@functools.cache
def _is_installed() -> bool:
    """Returns True if JAX finds cuDNN; also on a machine without a GPU, which compiles for one."""
    x = jax.ShapeDtypeStruct((1, 2, 1, 8), jnp.bfloat16)
    try:
        jax.eval_shape(functools.partial(_attend, bias=None), x, x, x)
    except RuntimeError:
        return False
    return True


def collect(
    q_landmarks: Float[Array, "B M H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    *,
    mask: Bool[Array, "B T"] | None,
) -> Float[Array, "B M H D"]:
    """Returns kernel_3 @ value, see `stages.collect`."""
    attends = None if mask is None else mask[:, None]
    collected = _attend(q_landmarks, key, value, _bias(attends, q_landmarks, key))
    return collected.astype(accum_dtype(value.dtype))


def distribute(
    query: Float[Array, "B L H D"],
    k_landmarks: Float[Array, "B M H D"],
    landmark_values: Float[Array, "B M H D"],
    *,
    landmark_mask: Bool[Array, "B M"] | None,
    assigned: Int[Array, "B L"] | None,
) -> Float[Array, "B L H D"]:
    """Returns kernel_1 @ landmark_values, see `stages.distribute`."""
    values = landmark_values.astype(query.dtype)
    if assigned is not None:
        landmark = jnp.arange(k_landmarks.shape[1], dtype=jnp.int32)[None, None]
        assigned = assigned[..., None]
        attends = True if landmark_mask is None else landmark_mask[:, None]
        attends = jnp.where(assigned < 0, attends, assigned == landmark)
        return _attend(query, k_landmarks, values, _bias(attends, query, k_landmarks))
    if landmark_mask is None:
        return _attend(query, k_landmarks, values, None)
    # Landmarks with tokens come first, so that their number is sufficient; a bias would have L × M entries.
    rank = jnp.cumsum(landmark_mask, axis=1, dtype=jnp.int32) - 1
    place = jnp.arange(rank.shape[1], dtype=jnp.int32)[None, :, None]
    chosen = ((rank[:, None] == place) & landmark_mask[:, None]).astype(query.dtype)
    k_landmarks, values = (jnp.einsum("BNM,BMHD->BNHD", chosen, x) for x in (k_landmarks, values))
    counts = jnp.maximum(rank[:, -1] + 1, 1)
    return _attend(query, k_landmarks, values, None, counts)


def _bias(
    attends: Bool[Array, "B _ _"] | None,
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
) -> Float[Array, "B 1 L T"] | None:
    """Returns zero where a query attends to a key; cuDNN does not broadcast the lengths of a bias."""
    if attends is None:
        return None
    bias = jnp.where(attends, 0.0, MASKED_BIAS.get(query.dtype.name, -1e30)).astype(query.dtype)
    shape = (query.shape[0], 1, query.shape[1], key.shape[1])
    return jnp.broadcast_to(bias[:, None], shape)


def _attend(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    bias: Float[Array, "B 1 L T"] | None,
    counts: Int[Array, " B"] | None = None,
) -> Float[Array, "B L H D"]:
    return jax.nn.dot_product_attention(
        query, key, value, bias, key_value_seq_lengths=counts, implementation=BACKEND
    )
