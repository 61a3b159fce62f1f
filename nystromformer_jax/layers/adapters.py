"""Adapters that make attention cores usable as `attention_fn` of Flax's own Modules."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from nystromformer_jax.attention.arguments import fold_axes
from nystromformer_jax.attention.checks import check_output, is_readable, mask_or_ones
from nystromformer_jax.cores import CoreFactory, make_core
from nystromformer_jax.cores.parameters import core_param_shapes
from nystromformer_jax.layers.encoder import projections
from nystromformer_jax.typing import Array, Bool, Float, Shaped

MASK = "a boolean mask [..., 1, 1, T] that is True at real keys"


@dataclasses.dataclass(frozen=True)
class AttentionFn:
    """Callable with the signature of `flax.linen.dot_product_attention`; see `attention_fn`.

    Instances with equal name and options are equal and have the same hash, so a Module that contains one
    can be a static argument of `jax.jit`.
    """

    make_core: CoreFactory
    cross_attention: bool

    def __call__(
        self,
        query: Float[Array, "*batch L H D"],
        key: Float[Array, "*batch T Hkv D"],
        value: Float[Array, "*batch T Hkv D"],
        bias: None = None,
        mask: Shaped[Array, "*batches 1 1 T"] | None = None,
        broadcast_dropout: bool = True,
        dropout_rng: Any = None,
        dropout_rate: float = 0.0,
        deterministic: bool = False,
        dtype: Any = None,
        precision: Any = None,
        module: Any = None,
        force_fp32_for_softmax: bool = False,
        qk_attn_weights_einsum: Any = None,
        attn_weights_value_einsum: Any = None,
        is_causal: bool = False,
    ) -> Float[Array, "*batch L H D"]:
        """Returns the attention output. The arguments are those of Flax's function.

        `broadcast_dropout` and `dropout_rng` are ignored, because weights have no dropout.
        `force_fp32_for_softmax` is ignored, because weights are always in at least float32.

        Raises:
          ValueError: An argument is unsupported by this attention.
        """
        name = self.make_core.core.__name__
        if dropout_rate and not deterministic:
            raise ValueError(
                "attention_fn does not support dropout of attention weights, got"
                f" dropout_rate={dropout_rate}: pass dropout_rate=0 to the Module, and apply Dropout to its"
                " output."
            )
        if module is not None:
            raise ValueError(
                f"{name} does not return attention weights to sow: pass sow_weights=False."
                " nystrom_factors and nystrom_attention_rows return the map of Nyström attention."
            )
        if is_causal:
            raise ValueError(
                f"attention_fn supports only padding masks, got is_causal=True for {name}: use"
                " jax.nn.dot_product_attention."
            )
        unsupported = {
            "bias": bias,
            "precision": precision,
            "qk_attn_weights_einsum": qk_attn_weights_einsum,
            "attn_weights_value_einsum": attn_weights_value_einsum,
        }
        for argument, passed in unsupported.items():
            if passed is not None:
                hint = " Use jax.default_matmul_precision." if argument == "precision" else ""
                raise ValueError(
                    f"{name} does not support {argument}; it must be None, got {passed!r}.{hint}"
                )
        query, key, value = promote_dtype(query, key, value, dtype=dtype)
        real = _key_mask(mask, query.shape[:-3], key.shape[-3])
        (query, key, value, real, _), batch = fold_axes(query, key, value, real, None)
        query_mask = None
        if self.cross_attention or query.shape[1] != key.shape[1]:
            query_mask = mask_or_ones(None, query)
        core = self.make_core(parent=None)
        output: Any = core.apply({}, query, key, value, real, query_mask, deterministic=True)
        check_output(output, query)
        if isinstance(mask, jax.core.Tracer) and mask.dtype != jnp.bool_:
            # `_key_mask` cannot raise an error for its values.
            output = jnp.where(((mask == 0) | (mask == 1)).all(), output, jnp.nan)
        return output.reshape(*batch, *output.shape[1:])


def attention_fn(
    name: str = "nystrom", *, cross_attention: bool = False, **options: Any
) -> AttentionFn:
    """Returns an `attention_fn` for Flax's multi-head attention, in linen and NNX.

        nn.MultiHeadDotProductAttention(num_heads=8, attention_fn=attention_fn("nystrom", num_landmarks=64))
        nnx.MultiHeadAttention(8, 512, attention_fn=attention_fn("nystrom"), decode=False, rngs=rngs)

    The parameters of the Flax model do not change. Only padding masks `[..., 1, 1, T]` are supported,
    boolean, or zeros and ones of any dtype. Random features are the same in every layer and never redrawn.

    Args:
      name: `"nystrom"`, `"softmax"`, `"performer"`, `"longformer"`, `"linear"`, `"chunked"`, or
        `"module:Class"`, as in `make_core`. Other attentions of `make_core` have parameters or do not read
        query and key separately.
      cross_attention: If False, queries and keys are the same tokens, so the key mask also masks
        queries. If True, or if the lengths differ, all queries are real.
      **options: Attributes of the core. Options that add parameters, such as `conv_kernel_size`, raise an
        error.

    Raises:
      ValueError: The name or an option is unknown, the attention has parameters or does not read query and
        key separately (`"reformer"`, `"none"`), or an option enables dropout or the redrawing of random
        features.
    """
    factory = make_core(name, **options)
    for option in ("dropout_rate", "redraw"):
        if options.get(option):
            raise ValueError(
                f"attention_fn does not support {option}, got {options[option]!r}: it has no random numbers"
                f" of its own. Use SelfAttention or MultiHeadAttention with make_core({name!r}, …)."
            )
    if len(projections(factory(parent=None))) < 3:
        raise ValueError(
            f"{name} attention does not read query and key separately, but Flax's Modules project both: use"
            f" SelfAttention with make_core({name!r}, …)."
        )
    # Cores of other packages may need an even head_dim, for example for rotations.
    if core_param_shapes(factory(parent=None), num_heads=1, head_dim=64):
        raise ValueError(
            f"{name} attention with these options has parameters, which a function cannot hold: use"
            f" SelfAttention or MultiHeadAttention with make_core({name!r}, …)."
        )
    return AttentionFn(factory, cross_attention)


def _key_mask(mask: Any, batch: tuple[int, ...], length: int) -> Bool[Array, "*batch T"] | None:
    """Returns the key mask with the leading axes of the batch.

    Raises:
      ValueError: `mask` is not a padding mask.
    """
    if mask is None:
        return None
    # In decode mode, Flax itself makes a float32 mask. The values of a traced mask are unknown here. Others
    # are compared by NumPy: inside `jax.jit`, the result of a comparison by jnp would be traced.
    can_check = is_readable(mask) and np.asarray(mask).dtype != np.bool_
    is_valid = not can_check or bool(np.isin(np.asarray(mask), (0, 1)).all())
    mask = jnp.asarray(mask)
    shape = mask.shape
    if not is_valid:
        raise ValueError(
            f"mask must be {MASK}, or zeros and ones; got {mask.dtype} with other values. Additive masks"
            " are not supported."
        )
    fits = shape[-3:] == (1, 1, length) and len(shape) - 3 <= len(batch)
    pairs = zip(reversed(shape[:-3]), reversed(batch), strict=False)
    if not fits or any(axis not in (1, size) for axis, size in pairs):
        raise ValueError(
            f"mask must be {MASK}, with the batch {batch} and T = {length}; got shape {shape}. Only padding"
            " masks are supported. If mask is [B, T] and True at real tokens, pass mask[:, None, None, :]."
        )
    keys = mask.astype(bool).reshape(*shape[:-3], length)
    return jnp.broadcast_to(keys, (*batch, length))
