"""A trained model as one file that jax alone can run, for any batch size."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import export

from nystromformer_jax.typing import Array

__all__ = ["export_model"]


def export_model(
    model: nn.Module, variables: Any, *, length: int, platforms: Sequence[str] | None = None
) -> export.Exported:
    """Compiles `model.apply` to StableHLO with the parameters inside, for B sequences of `length` tokens.

        file.write_bytes(export_model(model, variables, length=128).serialize())
        logits = jax.export.deserialize(file.read_bytes()).call(inputs, mask, types)

    inputs and types are int32 `[B, length]`, mask is boolean; B may differ from call to call. Nothing is
    dropped. Whoever calls it needs jax, but neither flax nor this library.

    Args:
      model: One of `nystromformer_jax.models`, but for multiple choice.
      variables: As `model.apply` takes them.
      length: L, of all sequences; shorter ones are padded.
      platforms: Such as ("cpu", "cuda", "tpu"); None: the one that is here.
    """
    (batch,) = export.symbolic_shape("batch")
    ids = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch, length), jnp.bool_)

    def call(inputs: Array, mask: Array, types: Array) -> Any:
        return model.apply(variables, inputs, mask, types, deterministic=True)

    return export.export(jax.jit(call), platforms=platforms)(ids, mask, ids)
