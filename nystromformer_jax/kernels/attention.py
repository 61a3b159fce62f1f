"""Nyström attention with Pallas kernels: four passes over the tokens forward, three backward."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.checks import zero_padding
from nystromformer_jax.attention.convolution import convolve
from nystromformer_jax.attention.landmarks import LandmarkMeans, TokenRanks, segment_sizes
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.attention.stages import MASKED_LOGIT, invert_landmarks
from nystromformer_jax.kernels import collect, distribute, segments
from nystromformer_jax.kernels.band import WIDEST_CONVOLUTION, Convolution
from nystromformer_jax.kernels.packing import LANES, Packing
from nystromformer_jax.typing import Array, Bool, Float, Int

HEAD_DIMS = (32, 64, 128)
MAX_LANDMARKS = 256
REGISTER_ROWS = 16  # rows of bfloat16 in a register
SUPPORTED = {
    "pinv_start": "exact",  # "batch_max" needs a maximum over the examples of all devices
    "landmark_layout": "real",
    "landmark_selection": "segments",
    "mask_conv": True,
    "normalize_rows": False,
}


def unsupported(inputs: Inputs, options: NystromOptions) -> str:
    """Returns the reason why the kernels do not support these arguments, or an empty string."""
    query, conv_kernel = inputs.query, inputs.conv_kernel
    dtypes = {x.dtype for x in inputs[:3]}
    if len(dtypes) > 1:
        return f"query, key and value have several dtypes, {', '.join(sorted(map(str, dtypes)))}"
    masks_nothing = conv_kernel is None or inputs.mask is None
    for name, supported in SUPPORTED.items():
        if name == "mask_conv" and masks_nothing:
            continue
        if (given := getattr(options, name)) != supported:
            return f"they do not support {name}={given!r}"
    batch, _, num_heads, head_dim = query.shape
    if not isinstance(batch, int):  # symbolic, in `jax.export`
        return "they need a fixed batch size"
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"they support float32 and bfloat16, not {query.dtype}"
    if head_dim not in HEAD_DIMS:
        return (
            f"they support head dimensions of {', '.join(map(str, HEAD_DIMS))}, not of {head_dim}"
        )
    if num_heads > LANES // head_dim and num_heads % (LANES // head_dim):
        return f"{num_heads} heads of {head_dim} channels do not fill registers of {LANES} lanes"
    if options.num_landmarks % REGISTER_ROWS or options.num_landmarks > MAX_LANDMARKS:
        return (
            f"num_landmarks must be a multiple of {REGISTER_ROWS} up to {MAX_LANDMARKS},"
            f" not {options.num_landmarks}"
        )
    # With one kernel per channel, XLA computes the convolution, outside of these kernels.
    width = 0 if conv_kernel is None or conv_kernel.ndim == 3 else conv_kernel.shape[1]
    if width > WIDEST_CONVOLUTION:
        return f"the convolution may be at most {WIDEST_CONVOLUTION} wide, not {width}"
    return ""


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def kernel_attention(
    inputs: Inputs, options: NystromOptions, interpret: bool
) -> Float[Array, "B L H D"]:
    """Computes `nystrom_attention` for layout "real" and more positions than landmarks.

    Padding may contain any values, including NaN. The residuals of the backward pass are the arguments
    and landmark-sized arrays; attention weights are recomputed.
    """
    return _forward(inputs, options, interpret)[0]


class _Side(NamedTuple):
    """Segments and layout of the queries or of the keys."""

    packing: Packing
    ids: Int[Array, "_ 1 L"]
    sizes: Float[Array, "B M 1"]  # tokens per segment, at least one
    landmark_mask: Bool[Array, "B M"]
    is_short: Bool[Array, " B"]  # True for examples with at most M real tokens


class _Sides(NamedTuple):
    """Segments and layout of queries and keys."""

    queries: _Side
    keys: _Side
    copy_queries: Bool[Array, " B"]  # True if each query copies its landmark's value
    is_exact: Bool[Array, " B"]

    @classmethod
    def create(cls, inputs: Inputs, options: NystromOptions, interpret: bool) -> "_Sides":
        queries = _side(inputs.query, inputs.query_mask, options, interpret)
        keys = _side(inputs.key, inputs.mask, options, interpret)
        # Same rule as in `stages.assign_landmarks`.
        explicit = inputs.explicit_query_mask is not None
        copy_queries = explicit & queries.is_short & ~keys.is_short
        return cls(queries, keys, copy_queries, keys.is_short | copy_queries)


def _side(
    x: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    options: NystromOptions,
    interpret: bool,
) -> _Side:
    num_landmarks, num_own = options.num_landmarks, options.num_own_landmarks
    batch, length, num_heads, head_dim = x.shape
    masked = mask is not None
    packing = Packing(batch, num_heads, head_dim, num_landmarks, x.dtype, masked, interpret)
    # Without a mask, one row of segment ids serves all examples.
    ranks = TokenRanks.create(jnp.ones((1, length), bool) if mask is None else mask)
    counts = jnp.broadcast_to(ranks.counts, batch)
    sizes = segment_sizes(counts, num_landmarks, num_own)
    sizes_f32 = jnp.maximum(sizes, 1).astype(jnp.float32)[..., None]
    ids = ranks.segment_ids(num_landmarks, num_own)[:, None]
    return _Side(packing, ids, sizes_f32, sizes > 0, counts <= num_landmarks)


def _forward(inputs: Inputs, options: NystromOptions, interpret: bool) -> tuple[Array, Any]:
    query, key, value, mask, explicit_query_mask, conv_kernel = inputs
    sides = _Sides.create(inputs, options, interpret)
    queries, keys, copy_queries, _ = sides
    flat_query, flat_key, flat_value = (_flat(x) for x in (query, key, value))
    q_landmarks = segments.segment_sums(queries.packing, flat_query, queries.ids)
    k_landmarks = segments.segment_sums(keys.packing, flat_key, keys.ids)
    q_landmarks, k_landmarks = q_landmarks / queries.sizes, k_landmarks / keys.sizes
    values, columns = collect.forward(
        keys.packing, q_landmarks, flat_key, flat_value, keys.ids, keys.is_short.astype(jnp.int32)
    )
    maximum, total = (
        _from_columns(keys.packing, columns[..., lane]) for lane in (collect.MAXIMUM, collect.SUM)
    )
    landmark_values = _landmark_values(q_landmarks, k_landmarks, values, total, sides, options)
    # The kernel uses the mask of the queries. If values have a different mask, XLA convolves them.
    same_mask = explicit_query_mask is None
    output = distribute.forward(
        queries.packing,
        flat_query,
        k_landmarks,
        landmark_values,
        queries.ids,
        copy_queries.astype(jnp.int32),
        _bias(keys) if mask is not None else None,
        Convolution(flat_value, conv_kernel) if same_mask and conv_kernel is not None else None,
    ).reshape(query.shape)
    if conv_kernel is not None and not same_mask:
        output += convolve(zero_padding(value, mask), conv_kernel).astype(query.dtype)
    return output, (inputs, (q_landmarks, k_landmarks, values, maximum, total))


def _backward(
    options: NystromOptions, interpret: bool, residuals: Any, gradient: Array
) -> tuple[Inputs]:
    inputs, (q_landmarks, k_landmarks, values, maximum, total) = residuals
    query, key, value, mask, _, conv_kernel = inputs
    sides = _Sides.create(inputs, options, interpret)
    queries, keys, copy_queries, _ = sides
    d_output = _flat(gradient)

    between = functools.partial(_landmark_values, sides=sides, options=options)
    landmark_values, pull_back = jax.vjp(between, q_landmarks, k_landmarks, values, total)
    d_query, dk_distribute, d_landmark_values = distribute.backward(
        queries.packing,
        _flat(query),
        k_landmarks,
        landmark_values,
        queries.ids,
        copy_queries.astype(jnp.int32),
        _bias(keys) if mask is not None else None,
        d_output,
    )
    dq_between, dk_between, d_values, d_total = pull_back(d_landmark_values)
    d_key, d_value, dq_collect, d_conv_kernel = collect.backward(
        keys.packing,
        q_landmarks,
        _flat(key),
        _flat(value),
        keys.ids,
        keys.is_short.astype(jnp.int32),
        _to_columns(keys.packing, maximum, d_total),
        d_values,
        (dk_distribute + dk_between) / keys.sizes,
        None if conv_kernel is None else Convolution(d_output, conv_kernel),
    )
    d_q_landmarks = (dq_collect + dq_between) / queries.sizes
    d_query = segments.add_to_members(queries.packing, d_query, d_q_landmarks, queries.ids)
    gradients = Inputs(
        query=d_query.reshape(query.shape),
        key=d_key.reshape(key.shape),
        value=d_value.reshape(value.shape),
        mask=None,
        explicit_query_mask=None,
        conv_kernel=d_conv_kernel,
    )
    return (gradients,)


kernel_attention.defvjp(_forward, _backward)


def _landmark_values(
    q_landmarks: Float[Array, "B M E"],
    k_landmarks: Float[Array, "B M E"],
    values: Float[Array, "B M E"],
    total: Float[Array, "B M H"],
    sides: _Sides,
    options: NystromOptions,
) -> Float[Array, "B M E"]:
    """Returns pinv(kernel_2) @ kernel_3 @ value, given the unnormalized kernel_3 @ value and its sums."""
    packing = sides.keys.packing
    shape = (packing.batch, packing.num_landmarks, packing.num_heads, packing.head_dim)
    # HIGH uses three bfloat16 passes. The error, 1e-4, is far below the precision of a bfloat16 output.
    precision = jax.lax.Precision.HIGH if packing.dtype == jnp.bfloat16 else None
    landmarks = invert_landmarks(
        LandmarkMeans(q_landmarks.reshape(shape), sides.queries.landmark_mask),
        LandmarkMeans(k_landmarks.reshape(shape), sides.keys.landmark_mask),
        options,
        precision,
    )
    collected = values.reshape(shape) / total[..., None]
    return landmarks.apply_inverse(collected, sides.is_exact).reshape(values.shape)


def _flat(x: Float[Array, "B L H D"]) -> Float[Array, "B L E"]:
    return x.reshape(*x.shape[:2], -1)


def _bias(keys: _Side) -> Float[Array, "B groups rows lanes"]:
    """Returns columns that mask landmarks without tokens when they are added to the logits."""
    packing = keys.packing
    bias = jnp.where(keys.landmark_mask, 0.0, MASKED_LOGIT).astype(jnp.float32)
    return _to_columns(packing, jnp.broadcast_to(bias[..., None], (*bias.shape, packing.num_heads)))


def _to_columns(
    packing: Packing, *numbers: Float[Array, "B M H"]
) -> Float[Array, "B groups rows lanes"]:
    """Stacks per-landmark numbers along the lanes; the last number fills the remaining lanes."""
    columns = [
        x.swapaxes(1, 2).reshape(packing.batch, packing.num_groups, packing.rows) for x in numbers
    ]
    lane = jnp.arange(LANES)
    filled = jnp.broadcast_to(columns[-1][..., None], (*columns[-1].shape, LANES))
    for index, column in enumerate(columns[:-1]):
        filled = jnp.where(lane == index, column[..., None], filled)
    return filled


def _from_columns(packing: Packing, column: Float[Array, "B groups rows"]) -> Float[Array, "B M H"]:
    shape = (packing.batch, packing.num_heads, packing.num_landmarks)
    return column.reshape(shape).swapaxes(1, 2)
