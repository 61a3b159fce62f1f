"""Attention maps of a model's layers: rows, weighted sums of rows, and rollout, without the n × n map.

The output of attention is map @ value. The transpose of this linear function of the value maps a cotangent
to cotangentᵀ @ map, a weighted sum of rows, for about the cost of the attention itself. It is the map of
whatever the core computes, exact for few tokens, with its masks and options, also on a mesh.
"""

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core.scope import union_filters
from jax.typing import ArrayLike

from nystromformer_jax.attention.checks import accum_dtype
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.typing import Array, Float

Positions = ArrayLike | Sequence[Any]  # integers [P] or [B, P]

COLLECTION = "attention_inputs"  # holds the inputs of cores while `attention_maps` runs a model


@flax.struct.dataclass
class AttentionMap:
    """The attention map of a layer, without the convolution of the value; see `attention_maps`.

    Attributes:
      core: The attention core.
      variables: Variables of the core.
      inputs: Query, key, value and masks of the core, with heads.
    """

    core: nn.Module = flax.struct.field(pytree_node=False)
    variables: Any
    inputs: CoreInputs

    def rows(self, positions: Positions = (0,)) -> Float[Array, "B H P T"]:
        """Returns rows of the map: how queries at `positions` weight the keys.

        Rows of Nyström attention need not sum to one. They are zero at masked keys, and unspecified for
        masked queries. The cost is that of one to two calls of the attention for every D positions.

        Args:
          positions: Query positions, [P], or [B, P] for other positions in each example; by default 0, the
            class token. Negative positions count from the end. A position out of range gives NaN.

        Raises:
          ValueError: `positions` is not an integer array of this shape.
        """
        return self.weighted_sum(_one_hot(positions, self.inputs.query))

    def weighted_sum(self, weights: Float[Array, "B P L"]) -> Float[Array, "B H P T"]:
        """Returns `weights @ map` for the map of each head, in at least float32."""
        query, key, value, mask, query_mask = self.inputs
        dtype = accum_dtype(query.dtype)
        query, key, value = query.astype(dtype), key.astype(dtype), value.astype(dtype)

        def attend(value: Array) -> Array:
            tokens = query, key, value, mask, query_mask
            output: Any = self.core.apply(self.variables, *tokens, deterministic=True)
            return output

        _, transpose = jax.vjp(attend, jnp.zeros_like(value))
        # Each channel of a cotangent has the weights of one sum: D sums at a time.
        batch, count, length = weights.shape
        dim = query.shape[-1]
        weights = jnp.pad(weights.astype(dtype), ((0, 0), (0, -count % dim), (0, 0)))
        cotangents = weights.reshape(batch, -(-count // dim), dim, length)
        cotangents = cotangents.transpose(1, 0, 3, 2)[..., None, :]
        sums = jax.lax.map(lambda x: transpose(jnp.broadcast_to(x, query.shape))[0], cotangents)
        rows = sums.transpose(1, 3, 0, 4, 2)  # [G B T H D] to [B H G D T]
        return rows.reshape(*rows.shape[:2], -1, rows.shape[-1])[:, :, :count]


def attention_maps(model: Any, *args: Any, **kwargs: Any) -> list[AttentionMap]:
    """Calls a model, and returns the attention map of each layer in the order of their calls.

        maps = attention_maps(model, variables, x, mask, deterministic=True)  # linen
        maps = attention_maps(model, x, mask)                                 # NNX, after model.eval()
        maps[-1].rows()               # of the class token at position 0, [B, H, 1, L]
        attention_rollout(maps)       # through all layers, [B, 1, L]

    An `AttentionMap` is a pytree that holds the inputs of the layer's core. Maps have no dropout. The output
    of a core must be linear in the value, as that of all cores of this package is.

    Args:
      model: A linen Module, which is called by `model.apply(*args, **kwargs)`, also with `remat`; or an NNX
        Module or another function, which is called by `model(*args, **kwargs)`. A function must not call
        cores inside a `jax.jit` or `jax.checkpoint` of its own. `attention_maps` itself may be inside.
      *args: Arguments of the call.
      **kwargs: Keyword arguments of the call.

    Raises:
      ValueError: The model calls no core, or calls one inside `nn.scan` or `nn.vmap`.
    """
    calls: list[tuple[nn.Module, tuple[str, ...] | None, Any]] = []

    def capture(call: Any, call_args: Any, call_kwargs: Any, context: Any) -> Any:
        core = context.module
        is_outermost = _is_core(core) and not any(map(_is_core, _parents(core)))
        if is_outermost and context.method_name == "__call__":
            inputs = _core_inputs(*call_args, **call_kwargs)
            variables = {name: x for name, x in core.variables.items() if name != COLLECTION}
            # A linen model returns the inputs as variables, through transformations such as `nn.remat`.
            # The cores of NNX layers and of `attention_fn` are not part of a linen model.
            is_stored = core.sow(COLLECTION, "calls", (variables, inputs))
            if core.path and not is_stored:
                raise ValueError(
                    "attention_maps does not support layers inside nn.scan or nn.vmap, and needs a linen"
                    " Module with its variables rather than a function that applies it."
                )
            path = core.path if is_stored else None
            calls.append((_without_convolution(core), path, (variables, inputs)))
        return call(*call_args, **call_kwargs)

    sown: Any = {}
    with nn.intercept_methods(capture):
        if isinstance(model, nn.Module):
            mutable = union_filters(kwargs.pop("mutable", False), COLLECTION)
            _, sown = model.apply(*args, mutable=mutable, **kwargs)
        else:
            model(*args, **kwargs)
    if not calls:
        raise ValueError(
            f"The call of {type(model).__name__} has no attention core, so it has no map."
        )
    maps = []
    for index, (core, path, captured) in enumerate(calls):
        if path is not None:
            number = [other for _, other, _ in calls[:index]].count(path)
            captured = functools.reduce(operator.getitem, path, sown[COLLECTION])["calls"][number]
        maps.append(AttentionMap(core, *captured))
    return maps


def attention_rollout(
    maps: Sequence[AttentionMap], positions: Positions = (0,), *, residual: float = 0.5
) -> Float[Array, "B P L"]:
    """Returns how the outputs of the last layer depend on the tokens of the first: attention rollout.

        rows = one_hot(positions) @ layer_N @ … @ layer_1
        layer = residual · I + (1 − residual) · map, where map is the mean over the heads

    Rows sum to one if those of the maps do, as with softmax attention or `normalize_rows`. Nyström attention
    takes time and memory linear in L.

    Args:
      maps: Maps of self-attention layers, first layer first, such as those of `attention_maps`. Leave
        cross-attention out: between sequences of equal length it is not detected, and the result is wrong.
      positions: See `AttentionMap.rows`.
      residual: Weight of the residual connection, from 0 to 1.

    Raises:
      ValueError: There are no maps, the maps do not have one shape [L, L], or `positions` is invalid.

    Source: Abnar and Zuidema 2020, "Quantifying attention flow in transformers", arXiv:2005.00928.
    """
    tokens = [x for layer in maps for x in layer.inputs[:2]]
    shapes = {x.shape[:2] for x in tokens}
    if len(shapes) != 1:
        raise ValueError(
            "attention_rollout needs maps of self-attention layers with one batch and length, got queries and"
            f" keys of shapes {sorted(shapes)}."
        )
    weights = _one_hot(positions, tokens[0])
    for layer in reversed(maps):
        attended = layer.weighted_sum(weights).mean(axis=1)
        weights = residual * weights + (1 - residual) * attended
    return weights


def _one_hot(positions: Positions, query: Float[Array, "B L H D"]) -> Float[Array, "B P L"]:
    """Returns weights of one at the positions; NaN for positions out of range."""
    index, (batch, length) = jnp.asarray(positions), query.shape[:2]
    if index.shape[:-1] not in ((), (batch,)) or not index.ndim or index.dtype.kind not in "iu":
        raise ValueError(
            f"positions must be integers [P] or [B, P] with B = {batch}, got shape {index.shape} of"
            f" {index.dtype}."
        )
    index = jnp.broadcast_to(jnp.where(index < 0, index + length, index), (batch, index.shape[-1]))
    is_inside = (index >= 0) & (index < length)
    tokens = jnp.arange(length, dtype=index.dtype)[None, None]
    weights = (index[..., None] == tokens).astype(accum_dtype(query.dtype))
    return jnp.where(is_inside[..., None], weights, jnp.nan)


def _is_core(module: nn.Module) -> bool:
    return isinstance(module, AttentionCore) or module.name == "core"


def _parents(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules that contain `module`, innermost first."""
    parent: Any = module.parent
    while isinstance(parent, nn.Module):  # a Scope or None is above the outermost module
        yield parent
        parent = parent.parent


def _core_inputs(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    query_mask: Array | None = None,
    **_: Any,
) -> CoreInputs:
    """Returns the array arguments of a core's call."""
    return CoreInputs(query, key, value, mask, query_mask)


def _without_convolution(core: nn.Module) -> nn.Module:
    """Returns the core outside of its model, without convolution, on every device by XLA."""
    layer_name = getattr(core, "layer_name", "") or "/".join(core.path)
    changes: dict[str, Any] = {
        "conv_kernel_size": 0,
        "implementation": "xla",
        "layer_name": layer_name,
    }
    changes = {name: x for name, x in changes.items() if hasattr(core, name)}
    return core.clone(parent=None, name=None, **changes)
