"""Types and validation of arguments, masking of padding, and accumulation dtypes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from nystromformer_jax.support.values import (
    Layout,
    Pinv,
    Start,
    check_choice,
    check_size,
    is_integer,
)
from nystromformer_jax.typing import Array, Bool, Float, Shaped

FLOATS = ("float32", "bfloat16", "float16", "float64")
# Iterations are unrolled in the program. After about sixteen of them rounding errors grow again.
MAX_PINV_ITERS = 100
MAX_RIDGE_ITERS = 10  # errors in float32 grow with the condition number, 3.25^num_iters


def accum_dtype(dtype: DTypeLike) -> DTypeLike:
    """Returns the accumulation dtype for values of `dtype`: at least float32.

    Unlike `jnp.promote_types`, it works with `jax.numpy_dtype_promotion("strict")`.
    """
    return jnp.float32 if jnp.finfo(dtype).bits < 32 else dtype


def zero_padding(
    x: Float[Array, "B L *rest"], mask: Bool[Array, "B L"] | None
) -> Float[Array, "B L *rest"]:
    """Zeros `x` where `mask` is False. Uses `where`, because 0 · NaN is NaN."""
    if mask is None:
        return x
    return jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0)


def mask_or_ones(
    mask: Bool[Array, "B L"] | None, x: Shaped[Array, "B L H D"]
) -> Bool[Array, "B L"]:
    """Returns `mask`, or True everywhere if it is None, sharded like the tokens of `x`."""
    if mask is None:
        return jnp.ones_like(x, bool).all(axis=(2, 3))
    sharding = jax.typeof(x).sharding
    if jax.sharding.AxisType.Explicit not in sharding.mesh.axis_types:
        return mask
    return jax.sharding.reshard(mask, jax.sharding.PartitionSpec(*sharding.spec[:2]))


def pad_length(x: Shaped[Array, "B L *rest"], multiple: int) -> Shaped[Array, "B T *rest"]:
    """Pads the length of `x` at the end with zeros to a multiple of `multiple`."""
    missing = -x.shape[1] % multiple
    return jnp.pad(x, ((0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2))) if missing else x


def masked_inputs(
    query: Any, key: Any, value: Any, mask: Any, query_mask: Any
) -> tuple[Float[Array, "B L H D"], Float[Array, "B T H D"], Float[Array, "B T H D"]]:
    """Converts and validates the arguments of an attention function, and zeros their padding."""
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    query = zero_padding(query, check_query_mask(query, key, mask, query_mask))
    return query, zero_padding(key, mask), zero_padding(value, mask)


def check_inputs(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    names: tuple[str, str, str] = ("query", "key", "value"),
    *,
    any_value_dim: bool = False,
    split_length: bool = False,
) -> None:
    """Raises ValueError unless query, key, value and key mask have suitable shapes and supported dtypes.

    `names` are the names of the arrays for messages. With `any_value_dim`, head_dim of values may differ.
    With `split_length`, the length may be sharded over an explicit mesh axis.
    """
    for name, x in zip(names, (query, key, value), strict=True):
        check_array(name, x, "batch, length, heads, head_dim")
        axis = jax.typeof(x).sharding.spec[1:2] if isinstance(x, jax.Array) else ()
        if not split_length and axis and axis[0] is not None:
            raise ValueError(
                f"{name} has its length sharded over the explicit mesh axis {axis[0]!r}: use"
                " sharded_nystrom_attention, or make the axis Auto."
            )
    axes, exception = (3, " but for head_dim") if any_value_dim else (4, "")
    if key.shape[:axes] != value.shape[:axes]:
        raise ValueError(
            f"{names[1]} and {names[2]} must have the same shape{exception}, got {key.shape} and"
            f" {value.shape}."
        )
    if query.shape[:1] + query.shape[2:] != key.shape[:1] + key.shape[2:]:
        raise ValueError(
            f"{names[0]} and {names[1]} may differ in length (axis 1) only: batch, heads and head_dim"
            f" must agree, got {query.shape} and {key.shape}."
        )
    check_mask("mask", mask, key.shape[:2], "real keys, [B T]")


def check_output(output: Any, query: Array) -> None:
    """Raises ValueError unless the output of a core has the shape of the query."""
    shape = getattr(output, "shape", None)
    if shape != query.shape:
        raise ValueError(
            "A core must return one array of the query's shape [batch, length, heads, head_dim],"
            f" {query.shape}, got {type(output).__name__ if shape is None else f'shape {shape}'}."
        )


def check_array(name: str, x: Array, axes: str) -> None:
    """Raises ValueError unless `x` has the given non-empty axes and a supported dtype."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise ValueError(
            f"{name} must be a JAX or NumPy array, got a {type(x).__module__}.{type(x).__qualname__}."
            f" Pass jnp.asarray({name})."
        )
    if x.ndim != axes.count(",") + 1 or 0 in x.shape:
        raise ValueError(f"{name} must be a non-empty array [{axes}], got shape {x.shape}.")
    check_dtype(name, x)


def check_dtype(name: str, x: Array) -> None:
    """Raises ValueError unless the dtype of `x` is one of `FLOATS`."""
    if x.dtype.name not in FLOATS:
        raise ValueError(
            f"{name} must have dtype {', '.join(FLOATS[:-1])} or {FLOATS[-1]}, got {x.dtype}: cast it"
            f" before the call, for example {name}.astype(jnp.bfloat16)."
        )


def check_query_mask(
    query: Array, key: Array, mask: Array | None, query_mask: Array | None
) -> Array | None:
    """Validates `query_mask` and returns the mask of the queries: `mask` if `query_mask` is None."""
    if query_mask is not None:
        check_mask("query_mask", query_mask, query.shape[:2], "real queries, [B L]")
        return query_mask
    if mask is not None and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query and key differ in length ({query.shape[1]} and {key.shape[1]}), so `mask` does not"
            " apply to the queries: pass query_mask [B L] too (all True if none is padding)."
        )
    return mask


def check_self_attention(name: str, query: Array, key: Array) -> None:
    """Raises ValueError unless query and key have the same length; `name` is that of the attention."""
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            f"{name} attention is self-attention: query and key must have the same length; got"
            f" L = {query.shape[1]} and T = {key.shape[1]}. Use softmax or nystrom attention instead."
        )


def check_mask(name: str, mask: Array | None, shape: tuple[int, ...], meaning: str) -> None:
    """Raises ValueError unless `mask` is None or a boolean array of this shape."""
    if mask is None:
        return
    if not hasattr(mask, "dtype"):
        raise ValueError(
            f"{name} must be a boolean array, True at {meaning}; got a {type(mask).__name__}. Pass"
            f" jnp.asarray({name})."
        )
    if mask.shape != shape:
        hint = (
            " Only padding masks are supported, not causal or block masks [B 1 L T]. Use"
            " jax.nn.dot_product_attention with such masks."
        )
        raise ValueError(
            f"{name} must have shape {shape} and be True at {meaning}; got shape {mask.shape}."
            + (hint if mask.ndim == len(shape) + 2 else "")
        )
    if mask.dtype != jnp.bool_:
        raise ValueError(
            f"{name} must be boolean, True at {meaning}; got {mask.dtype}. Pass {name} != 0 if"
            " non-zero means real."
        )


def check_conv_kernel_size(width: int) -> None:
    """Raises ValueError unless `width` is odd, or 0."""
    if not is_integer(width) or width < 0 or (width and width % 2 == 0):
        raise ValueError(
            f"conv_kernel_size must be odd (so that the kernel has a center), or 0 for none; got {width!r}."
        )


def check_convolution(query: Array, key: Array, conv_kernel: Array | None) -> None:
    """Raises ValueError unless `conv_kernel` is None or valid for these queries and keys."""
    if conv_kernel is None:
        return
    check_kernel("conv_kernel", conv_kernel, query.shape[2:])
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            "The convolution adds value positions to query positions, so conv_kernel needs equal"
            f" lengths; got L = {query.shape[1]} and T = {key.shape[1]}. Pass conv_kernel=None."
        )


def check_kernel(name: str, kernel: Array, head_shape: tuple[int, ...]) -> None:
    """Raises ValueError unless a convolution kernel is `[H W]` or `[H D W]`, W odd, of a supported dtype.

    `head_shape` is (H, D).
    """
    num_heads, head_dim = head_shape
    shape = tuple(kernel.shape)
    if shape[:-1] not in ((num_heads,), (num_heads, head_dim)) or shape[-1] % 2 == 0:
        raise ValueError(
            f"{name} must be [H W] or [H D W] with H = {num_heads} heads, D = {head_dim} channels"
            f" and W odd (so that it has a center), got shape {shape}."
        )
    check_dtype(name, kernel)


def check_landmarks(
    num_landmarks: int, length: int, layout: str, name: str = "landmark_layout"
) -> None:
    """Raises ValueError unless `length` can be divided into `num_landmarks` segments by `layout`."""
    check_size("num_landmarks (M)", num_landmarks)
    check_choice(name, layout, Layout)
    if layout != "real" and length % num_landmarks:
        raise ValueError(
            f"{name}={layout!r} divides L positions into M equal segments; L = {length} is not a multiple"
            f" of M = {num_landmarks}. Pad the input, or use {name}='real'."
        )


def check_own_landmarks(
    number: int, num_landmarks: int, layout: str, name: str = "landmark_layout"
) -> None:
    """Raises ValueError unless the first `number` tokens can be landmarks of their own."""
    if not is_integer(number) or not 0 <= number < num_landmarks:
        raise ValueError(
            f"num_own_landmarks must be an integer of at least 0 and below num_landmarks = {num_landmarks},"
            f" got {number!r}."
        )
    if number and layout != "real":
        raise ValueError(
            f"num_own_landmarks={number} needs {name}='real', got {layout!r}: the other layouts reproduce"
            " implementations without own landmarks."
        )


def check_pinv(
    pinv: str, num_iters: int, start: str, names: tuple[str, str] = ("pinv_iters", "pinv_start")
) -> None:
    """Raises ValueError unless a pseudoinverse, its number of iterations and its start agree."""
    check_choice("pinv", pinv, Pinv)
    check_choice(names[1], start, Start)
    most = MAX_RIDGE_ITERS if pinv == "ridge" else MAX_PINV_ITERS
    if not is_integer(num_iters) or not 0 <= num_iters <= most:
        of_ridge = " for the ridge inverse" if pinv == "ridge" else ""
        raise ValueError(
            f"{names[0]} must be an integer from 0 to {most}{of_ridge}, got {num_iters!r}."
        )
    if pinv == "ridge" and start != "exact":
        raise ValueError(
            f"pinv='ridge' does not iterate, so it needs {names[1]}='exact', got {start!r}."
        )


def check_tokens(inputs: Any, types: Any, axes: str) -> None:
    """Raises ValueError unless token ids are an integer array with these axes, and types have its shape."""
    for name, ids in (("inputs", inputs), ("types", types)):
        if name == "types" and ids is None:
            continue
        if (
            not isinstance(ids, (jax.Array, np.ndarray))
            or ids.shape != inputs.shape
            or ids.ndim != len(axes.split())
            or 0 in ids.shape
            or not jnp.issubdtype(ids.dtype, jnp.integer)
        ):
            raise ValueError(
                f"{name} must be a non-empty integer array [{axes}], and types must have the shape of"
                f" inputs; got {shape_or_type(ids)}."
            )


def shape_or_type(x: Any) -> str:
    """Describes an array, or any other value, for error messages."""
    return f"shape {x.shape} of {x.dtype}" if hasattr(x, "shape") else f"a {type(x).__name__}"


_ADVICE = " Use the model's own tokenizer; at padding set the mask to False and the id to 0."


def check_ids(name: str, ids: Any, size: int, limit: str, *, advice: str = _ADVICE) -> None:
    """Raises ValueError unless all ids are from 0 to `size` - 1; `limit` is the name of `size`.

    Traced ids and ids on other processes are not checked.
    """
    if ids is None or not is_readable(ids):
        return
    values = np.asarray(ids)
    if not values.size:  # no positions
        return
    if wrong := [int(value) for value in (values.min(), values.max()) if not 0 <= value < size]:
        raise ValueError(f"{name} must be from 0 to {size - 1} ({limit}), got {wrong[0]}.{advice}")


def is_readable(x: Any) -> bool:
    """Returns False for traced arrays and for arrays with parts on other processes."""
    if isinstance(x, jax.core.Tracer):
        return False
    return not isinstance(x, jax.Array) or x.is_fully_addressable
