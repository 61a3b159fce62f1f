"""The whole of Nyström attention by kernels: four passes over the tokens forward, and three back."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nystromformer_jax.convolution import depthwise_convolution
from nystromformer_jax.inputs import Inputs, Options, where_real
from nystromformer_jax.kernels import collect, distribute, segments
from nystromformer_jax.kernels.band import WIDEST_CONVOLUTION, Convolution
from nystromformer_jax.kernels.packing import LANES, Packing
from nystromformer_jax.landmarks import segment_ids
from nystromformer_jax.pinv import iterative_pinv
from nystromformer_jax.steps import MASKED_LOGIT, landmark_kernel
from nystromformer_jax.typing import Array, Bool, Float, Int

HEAD_DIMS = (32, 64, 128)
MOST_LANDMARKS = 256
REGISTER_ROWS = 16  # of bfloat16 in a register
SERVED = {
    "pinv_start": "exact",
    "landmark_layout": "real",
    "mask_conv": True,
    "normalize_rows": False,
}


def unsupported(inputs: Inputs, options: Options) -> str:
    """Why these arguments are not for the kernels; empty if they are."""
    query, conv_kernel = inputs.query, inputs.conv_kernel
    dtypes = {x.dtype for x in inputs[:3]}
    if len(dtypes) > 1:
        return f"query, key and value are of several types, {', '.join(sorted(map(str, dtypes)))}"
    # With "batch_max" one device would see the largest sum of its own examples.
    for name, served in SERVED.items():
        if (given := getattr(options, name)) != served:
            return f"{name}={given!r} is not for them"
    num_heads, head_dim = query.shape[2:]
    if query.dtype not in (jnp.float32, jnp.bfloat16):
        return f"they take float32 and bfloat16, not {query.dtype}"
    if head_dim not in HEAD_DIMS:
        return f"they take heads of {', '.join(map(str, HEAD_DIMS))}, not of {head_dim}"
    if num_heads > LANES // head_dim and num_heads % (LANES // head_dim):
        return f"{num_heads} heads of {head_dim} do not fill registers of {LANES}"
    if options.num_landmarks % REGISTER_ROWS or options.num_landmarks > MOST_LANDMARKS:
        return (
            f"num_landmarks must be a multiple of {REGISTER_ROWS} up to {MOST_LANDMARKS},"
            f" not {options.num_landmarks}"
        )
    if conv_kernel is not None and conv_kernel.shape[1] > WIDEST_CONVOLUTION:
        return f"the convolution may be {WIDEST_CONVOLUTION} wide, not {conv_kernel.shape[1]}"
    return ""


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def kernel_attention(inputs: Inputs, options: Options, interpret: bool) -> Float[Array, "B L H D"]:
    """`nystrom_attention` with segments over real tokens and more of them than landmarks.

    Reads what padding holds and does not see it. Reverse-mode differentiation keeps the arguments and
    what has landmarks in place of tokens; the weights are made again.
    """
    return _forward(inputs, options, interpret)[0]


class _Side(NamedTuple):
    """Segments of queries or keys, and how they are packed."""

    packing: Packing
    ids: Int[Array, "_ 1 L"]
    sizes: Float[Array, "B M 1"]  # at least one
    alive: Bool[Array, "B M"]
    few: Bool[Array, " B"]  # no more tokens than landmarks


def _side(
    x: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    num_landmarks: int,
    interpret: bool,
) -> _Side:
    batch, length, num_heads, head_dim = x.shape
    masked = mask is not None
    packing = Packing(batch, num_heads, head_dim, num_landmarks, x.dtype, masked, interpret)
    ids = segment_ids(jnp.ones((1, length), bool) if mask is None else mask, num_landmarks)
    count = jnp.full(batch, length) if mask is None else mask.sum(axis=1)
    # Segment s begins at rank ceil(s · count / M).
    begins = -(-jnp.arange(num_landmarks + 1)[None] * count[:, None] // num_landmarks)
    sizes = jnp.diff(begins, axis=1)
    widths = jnp.maximum(sizes, 1).astype(jnp.float32)[..., None]
    return _Side(packing, ids[:, None], widths, sizes > 0, count <= num_landmarks)


class _Sides(NamedTuple):
    """What masks and shapes say."""

    queries: _Side
    keys: _Side
    own: Bool[Array, " B"]  # few queries, with a mask of their own, over many keys

    @classmethod
    def of(cls, inputs: Inputs, options: Options, interpret: bool) -> "_Sides":
        queries = _side(inputs.query, inputs.query_mask, options.num_landmarks, interpret)
        keys = _side(inputs.key, inputs.mask, options.num_landmarks, interpret)
        own = (inputs.own_query_mask is not None) & queries.few & ~keys.few
        return cls(queries, keys, own)


def _forward(inputs: Inputs, options: Options, interpret: bool) -> tuple[Array, Any]:
    query, key, value, mask, own_query_mask, conv_kernel = inputs
    sides = _Sides.of(inputs, options, interpret)
    queries, keys, own = sides
    flat_query, flat_key, flat_value = (_flat(x) for x in (query, key, value))
    q_landmarks = segments.segment_sums(queries.packing, flat_query, queries.ids)
    k_landmarks = segments.segment_sums(keys.packing, flat_key, keys.ids)
    q_landmarks, k_landmarks = q_landmarks / queries.sizes, k_landmarks / keys.sizes
    values, columns = collect.forward(
        keys.packing,
        q_landmarks,
        flat_key,
        flat_value,
        keys.ids,
        keys.few.astype(jnp.int32),
    )
    maximum, total = (
        _from_columns(keys.packing, columns[..., lane]) for lane in (collect.MAXIMUM, collect.SUM)
    )
    landmark_values = _between(q_landmarks, k_landmarks, values, total, sides, options)
    # The kernel looks at padding of queries; where values have other padding the convolution goes apart.
    together = own_query_mask is None
    output = distribute.forward(
        queries.packing,
        flat_query,
        k_landmarks,
        landmark_values,
        queries.ids,
        own.astype(jnp.int32),
        _bias(keys) if mask is not None else None,
        Convolution(flat_value, conv_kernel) if together and conv_kernel is not None else None,
    ).reshape(query.shape)
    if conv_kernel is not None and not together:
        output += depthwise_convolution(where_real(value, mask), conv_kernel).astype(query.dtype)
    return output, (inputs, (q_landmarks, k_landmarks, values, maximum, total))


def _backward(options: Options, interpret: bool, residuals: Any, gradient: Array) -> tuple[Inputs]:
    inputs, (q_landmarks, k_landmarks, values, maximum, total) = residuals
    query, key, value, mask, _, conv_kernel = inputs
    sides = _Sides.of(inputs, options, interpret)
    queries, keys, own = sides
    flat_gradient = _flat(gradient)

    between = functools.partial(_between, sides=sides, options=options)
    landmark_values, pull_back = jax.vjp(between, q_landmarks, k_landmarks, values, total)
    dquery, dk_landmarks, dlandmark_values = distribute.backward(
        queries.packing,
        _flat(query),
        k_landmarks,
        landmark_values,
        queries.ids,
        own.astype(jnp.int32),
        _bias(keys) if mask is not None else None,
        flat_gradient,
    )
    dq_between, dk_between, dvalues, dtotal = pull_back(dlandmark_values)
    dkey, dvalue, dq_landmarks, dconv_kernel = collect.backward(
        keys.packing,
        q_landmarks,
        _flat(key),
        _flat(value),
        keys.ids,
        keys.few.astype(jnp.int32),
        _to_columns(keys.packing, maximum, dtotal),
        dvalues,
        (dk_landmarks + dk_between) / keys.sizes,
        None if conv_kernel is None else Convolution(flat_gradient, conv_kernel),
    )
    dq_landmarks = (dq_landmarks + dq_between) / queries.sizes
    dquery = segments.add_to_members(queries.packing, dquery, dq_landmarks, queries.ids)
    gradients = Inputs(
        query=dquery.reshape(query.shape),
        key=dkey.reshape(key.shape),
        value=dvalue.reshape(value.shape),
        mask=None,
        own_query_mask=None,
        conv_kernel=dconv_kernel,
    )
    return (gradients,)


kernel_attention.defvjp(_forward, _backward)


def _between(
    q_landmarks: Float[Array, "B M E"],
    k_landmarks: Float[Array, "B M E"],
    values: Float[Array, "B M E"],
    total: Float[Array, "B M H"],
    sides: _Sides,
    options: Options,
) -> Float[Array, "B M E"]:
    """What the landmarks hold, from what they collected."""
    queries, keys, own = sides
    packing = keys.packing
    shape = (packing.batch, packing.num_landmarks, packing.num_heads, packing.head_dim)
    collected = values.reshape(shape) / total[..., None]
    kernel_2 = landmark_kernel(
        q_landmarks.reshape(shape), k_landmarks.reshape(shape), queries.alive, keys.alive
    )
    # Three bfloat16 products for each, 1e-4: far below what a bfloat16 output shows.
    precision = jax.lax.Precision.HIGH if packing.dtype == jnp.bfloat16 else None
    inverse = iterative_pinv(
        kernel_2, num_iters=options.pinv_iters, start=options.pinv_start, precision=precision
    )
    held = jnp.einsum("BHNM,BMHD->BNHD", inverse, collected, precision=jax.lax.Precision.HIGHEST)
    held = jnp.where((keys.few | own)[:, None, None, None], collected, held)
    return held.reshape(values.shape)


def _flat(x: Float[Array, "B L H D"]) -> Float[Array, "B L E"]:
    return x.reshape(*x.shape[:2], -1)


def _bias(keys: _Side) -> Float[Array, "B groups rows lanes"]:
    """What keeps tokens from dead landmarks, as a column for each group."""
    packing = keys.packing
    bias = jnp.where(keys.alive, 0.0, MASKED_LOGIT)
    return _to_columns(packing, jnp.broadcast_to(bias[..., None], (*bias.shape, packing.num_heads)))


def _to_columns(
    packing: Packing, *numbers: Float[Array, "B M H"]
) -> Float[Array, "B groups rows lanes"]:
    """Numbers of each landmark on the lanes of its row; the last fills the rest."""
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
