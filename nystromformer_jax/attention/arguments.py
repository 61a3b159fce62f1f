"""The arguments of `nystrom_attention`: arrays, their common shape, and what the options mean for them."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    check_convolution,
    check_inputs,
    check_landmarks,
    check_mask,
    check_own_landmarks,
    check_pinv,
    check_query_mask,
    zero_padding,
)
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.values import Implementation, Layout, Selection, check_choice
from nystromformer_jax.typing import Array, Bool, Float, Shaped


class Inputs(NamedTuple):
    """The array arguments of `nystrom_attention`."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B T H D"]
    value: Float[Array, "B T H D"]
    mask: Bool[Array, "B T"] | None
    explicit_query_mask: Bool[Array, "B L"] | None  # None: the queries use `mask`
    conv_kernel: Float[Array, "H W"] | Float[Array, "H D W"] | None

    @classmethod
    def create(
        cls, query: Any, key: Any, value: Any, mask: Any, query_mask: Any, conv_kernel: Any
    ) -> "Inputs":
        """Converts array-likes; masks are kept as given for validation."""
        conv_kernel = None if conv_kernel is None else jnp.asarray(conv_kernel)
        query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
        return cls(query, key, value, mask, query_mask, conv_kernel)

    @classmethod
    def specs(cls, tokens: Any, conv_kernel: Any) -> Any:
        """Returns the partition specs of all arrays for `jax.shard_map`."""
        return cls(tokens, tokens, tokens, tokens, tokens, conv_kernel)

    @property
    def query_mask(self) -> Bool[Array, "B L"] | None:
        """True at real queries."""
        return self.mask if self.explicit_query_mask is None else self.explicit_query_mask


def fold_axes(
    query: Any, key: Any, value: Any, mask: Any, query_mask: Any
) -> tuple[tuple[Array, Array, Array, Any, Any], tuple[int, ...]]:
    """Converts array-likes, merges the leading axes into one batch axis and repeats grouped heads.

    Returns:
      `(query, key, value, mask, query_mask)` with the axes `[B L H D]`, `[B T H D]` and `[B T]`, and the
      shape of the leading axes. Arguments that do not agree are returned as they are, for validation.

    Raises:
      ValueError: The leading axes differ, H is not a multiple of the number of key heads, or the shape of a
        mask does not agree.
    """
    query, key, value = arrays = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    batch = query.shape[:-3]
    if min(x.ndim for x in arrays) < 3:
        return (query, key, value, mask, query_mask), batch
    if any(x.shape[:-3] != batch for x in arrays) and any(x.ndim != 4 for x in arrays):
        raise ValueError(
            "query, key and value must have the same leading axes before [length, heads, head_dim], got"
            f" shapes {query.shape}, {key.shape} and {value.shape}."
        )
    heads, groups = query.shape[-2], key.shape[-2]
    if groups != heads and value.shape[-2] == groups:
        if groups == 0 or heads % groups:
            raise ValueError(
                "The number of query heads must be a multiple of the number of key and value heads, got"
                f" {heads} and {groups}."
            )
        key, value = (_repeat_heads(x, heads // groups) for x in (key, value))
    if len(batch) == 1:
        return (query, key, value, mask, query_mask), batch
    for name, x, length in (
        ("mask", mask, key.shape[-3]),
        ("query_mask", query_mask, query.shape[-3]),
    ):
        check_mask(name, x, (*batch, length), "real tokens")
    size = math.prod(batch)  # not -1, which is ambiguous for empty arrays
    folded = (x.reshape(size, *x.shape[-3:]) for x in (query, key, value))
    masks = (None if x is None else x.reshape(size, x.shape[-1]) for x in (mask, query_mask))
    return (*folded, *masks), batch


def _repeat_heads(x: Shaped[Array, "*batch T G D"], times: int) -> Shaped[Array, "*batch T H D"]:
    """Repeats each head, sharded over explicit mesh axes as before."""
    repeated = jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], times, x.shape[-1]))
    return repeated.reshape(*x.shape[:-2], -1, x.shape[-1])


def mask_inputs(
    x: Float[Array, "B L H D"], mask: Bool[Array, "B L"] | None, options: NystromOptions
) -> Float[Array, "B L H D"]:
    """Zeros the padding of queries or keys, unless the layout is `"hf"`, which includes padding."""
    return x if options.landmark_layout == "hf" else zero_padding(x, mask)


def is_exact(inputs: Inputs, options: NystromOptions) -> bool:
    """Returns True if the result is softmax attention for inputs of these lengths."""
    lengths = inputs.query.shape[1], inputs.key.shape[1]
    if options.landmark_layout == "real":
        return min(lengths) <= options.num_landmarks
    return set(lengths) == {options.num_landmarks}


def check_options(options: NystromOptions, *tokens: Shaped[Array, "B _ ..."]) -> None:
    """Raises ValueError unless the options are valid, for the lengths of `tokens` if there are any."""
    check_choice("landmark_layout", options.landmark_layout, Layout)
    for x in tokens:
        check_landmarks(options.num_landmarks, x.shape[1], options.landmark_layout)
    check_own_landmarks(options.num_own_landmarks, options.num_landmarks, options.landmark_layout)
    check_pinv(options.pinv, options.pinv_iters, options.pinv_start)
    check_choice("landmark_selection", options.landmark_selection, Selection)
    if options.landmark_selection == "kmeans" and options.landmark_layout != "real":
        raise ValueError(
            "landmark_selection='kmeans' needs landmark_layout='real', got"
            f" {options.landmark_layout!r}: the other layouts reproduce implementations without k-means."
        )


def check_arguments(
    inputs: Inputs, options: NystromOptions, implementation: str, *, split_length: bool = False
) -> None:
    """Raises ValueError unless the arguments of `nystrom_attention` are valid."""
    query, key, value, mask, explicit_query_mask, conv_kernel = inputs
    check_inputs(query, key, value, mask, split_length=split_length)
    check_query_mask(query, key, mask, explicit_query_mask)
    check_options(options, query, key)
    check_convolution(query, key, conv_kernel)
    check_choice("implementation", implementation, Implementation)
