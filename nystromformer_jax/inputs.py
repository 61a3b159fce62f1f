"""What Nyström attention is given, what it asks of that, in words, and how padding is kept out."""

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

import jax.numpy as jnp

from nystromformer_jax.convolution import check_kernel
from nystromformer_jax.landmarks import Layout, check_landmarks
from nystromformer_jax.pinv import Start, check_pinv
from nystromformer_jax.typing import Array, Bool, Float

Implementation = Literal["auto", "xla", "pallas_tpu"]


class Inputs(NamedTuple):
    """The arrays that `nystrom_attention` was given."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B T H D"]
    value: Float[Array, "B T H D"]
    mask: Bool[Array, "B T"] | None
    own_query_mask: Bool[Array, "B L"] | None  # None: the queries carry `mask`
    conv_kernel: Float[Array, "H W"] | None

    @classmethod
    def of(cls, *arrays: Any) -> "Inputs":
        """Of whatever is an array to jax; masks stay as they are, to be checked."""
        query, key, value, mask, query_mask, conv_kernel = arrays
        conv_kernel = None if conv_kernel is None else jnp.asarray(conv_kernel)
        query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
        return cls(query, key, value, mask, query_mask, conv_kernel)

    @classmethod
    def specs(cls, tokens: Any, conv_kernel: Any) -> Any:
        """What `jax.shard_map` wants to know: one for all arrays over tokens, one for the kernel."""
        return cls(tokens, tokens, tokens, tokens, tokens, conv_kernel)

    @property
    def query_mask(self) -> Bool[Array, "B L"] | None:
        """Real queries."""
        return self.mask if self.own_query_mask is None else self.own_query_mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class LandmarkOptions:
    """What makes landmarks, and inverts the attention between them."""

    num_landmarks: int
    pinv_iters: int
    pinv_start: Start
    landmark_layout: Layout

    def seen(self, x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None) -> Array:
        """Queries or keys without what padding holds, which Hugging Face's landmarks average in."""
        return x if self.landmark_layout == "hf" else where_real(x, mask)

    def check(self, query: Array, key: Array) -> None:
        """Refuses what these lengths or nobody can have, in words."""
        for x in (query, key):
            check_landmarks(self.num_landmarks, x.shape[1], self.landmark_layout)
        check_pinv(self.pinv_iters, self.pinv_start)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(LandmarkOptions):
    """All that `nystrom_attention` was told beside its arrays, but who computes it."""

    mask_conv: bool
    normalize_rows: bool

    def exact(self, inputs: Inputs) -> bool:
        """Whether the shapes alone ask for softmax attention: no more tokens than landmarks."""
        lengths = inputs.query.shape[1], inputs.key.shape[1]
        if self.landmark_layout == "real":
            return min(lengths) <= self.num_landmarks
        return set(lengths) == {self.num_landmarks}


def where_real(
    x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None
) -> Float[Array, "B L H D"]:
    """Zeros where `mask` is False, by selection: 0 · NaN is NaN."""
    return x if mask is None else jnp.where(mask[..., None, None], x, 0)


def check_arguments(inputs: Inputs, options: Options, implementation: str) -> None:
    """Refuses what `nystrom_attention` cannot take, in words."""
    query, key, value, mask, own_query_mask, conv_kernel = inputs
    check_inputs(query, key, value, mask)
    check_query_mask(query, key, mask, own_query_mask)
    options.check(query, key)
    check_convolution(query, key, conv_kernel)
    if implementation not in get_args(Implementation):
        raise ValueError(
            f"implementation must be one of {', '.join(map(repr, get_args(Implementation)))},"
            f" got {implementation!r}."
        )


def check_inputs(query: Array, key: Array, value: Array, mask: Array | None) -> None:
    """Refuses query, key, value and key mask that do not fit each other, in words."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 4:
            raise ValueError(f"{name} must be [batch, length, heads, head_dim], got {x.shape}.")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"{name} must be of a floating-point type, got {x.dtype}.")
        if 0 in x.shape:
            raise ValueError(
                f"{name} has an empty axis: [batch, length, heads, head_dim] = {x.shape}."
            )
    if key.shape != value.shape:
        raise ValueError(f"key and value must have one shape, got {key.shape} and {value.shape}.")
    if query.shape[:1] + query.shape[2:] != key.shape[:1] + key.shape[2:]:
        raise ValueError(
            "query and key may differ in length (axis 1) only: batch, heads and head_dim must agree,"
            f" got {query.shape} and {key.shape}."
        )
    _check_mask("mask", mask, key.shape[0], key.shape[1], "real keys, [B T]")


def check_query_mask(
    query: Array, key: Array, mask: Array | None, query_mask: Array | None
) -> Array | None:
    """The mask of the queries: `query_mask`, or `mask` where the lengths say that it can serve."""
    if query_mask is not None:
        _check_mask("query_mask", query_mask, query.shape[0], query.shape[1], "real queries, [B L]")
        return query_mask
    if mask is not None and query.shape[1] != key.shape[1]:
        raise ValueError(
            f"query and key differ in length ({query.shape[1]} and {key.shape[1]}), so `mask` tells"
            " nothing about the queries: pass query_mask [B L] too (all True if none is padding)."
        )
    return mask


def check_convolution(query: Array, key: Array, conv_kernel: Array | None) -> None:
    """Refuses a convolution kernel of a wrong shape, or one over values that are not the queries'."""
    if conv_kernel is None:
        return
    check_kernel(conv_kernel, query.shape[2])
    if query.shape[1] != key.shape[1]:
        raise ValueError(
            "The convolution adds value positions to query positions, so conv_kernel needs equal"
            f" lengths; got L = {query.shape[1]} and T = {key.shape[1]}. Pass conv_kernel=None."
        )


def _check_mask(name: str, mask: Array | None, batch: int, length: int, meaning: str) -> None:
    if mask is None:
        return
    if not hasattr(mask, "dtype"):
        raise ValueError(
            f"{name} must be a boolean array, True at {meaning}; got a {type(mask).__name__}. Pass"
            f" jnp.asarray({name})."
        )
    if mask.ndim == 4:
        raise ValueError(
            f"{name} must be True at {meaning} = {(batch, length)}; got {mask.shape}. Masks here"
            " say what is padding: landmarks mix all tokens, so that a causal or block mask [B 1 L T]"
            " cannot hold. Use jax.nn.dot_product_attention with such masks."
        )
    if mask.shape != (batch, length):
        raise ValueError(
            f"{name} must be True at {meaning} = {(batch, length)}, got shape {mask.shape}."
        )
    if mask.dtype != jnp.bool_:
        raise ValueError(
            f"{name} must be boolean, True at {meaning}; got {mask.dtype}. Pass {name} != 0 if"
            " non-zero means real."
        )
