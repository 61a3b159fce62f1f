"""Exports a trained model to a program that needs jax and flatbuffers only, for any batch size."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import export

from nystromformer_jax.models import NystromformerForMultipleChoice
from nystromformer_jax.typing import Array


def export_model(
    model: nn.Module, variables: Any, *, length: int, platforms: str | Sequence[str] | None = None
) -> export.Exported:
    """Exports `model.apply` and the parameters to StableHLO, for batches `[B, length]` of tokens.

        file.write_bytes(export_model(model, variables, length=128).serialize())
        logits = jax.export.deserialize(file.read_bytes()).call(inputs, mask, types)

    `inputs` and `types` are int32 `[B, length]`, `mask` is boolean. B may differ between calls. Dropout is
    disabled. The program does not contain the TPU kernels, which need a fixed batch size. `serialize`
    and `deserialize` need flatbuffers, `call` only jax.

    Args:
      model: A `Nystromformer`, or a model of `nystromformer_jax.models` except for multiple choice.
      variables: Variables of `model.apply`.
      length: L, the length of all sequences. Shorter sequences must be padded.
      platforms: Platforms, such as ("cpu", "cuda", "tpu"), or one of them; None: the current platform.

    Raises:
      ValueError: The model is for multiple choice.
    """
    if isinstance(model, NystromformerForMultipleChoice):
        raise ValueError(
            "A NystromformerForMultipleChoice cannot be exported: its inputs are [B, N, L], and an"
            " exported model takes [B, L]. Export a NystromformerForSequenceClassification, or"
            " your own function with jax.export."
        )
    if hasattr(model, "deterministic"):  # the argument of the call replaces the attribute
        model = model.clone(deterministic=None)
    if isinstance(platforms, str):
        platforms = (platforms,)
    (batch,) = export.symbolic_shape("batch")
    ids = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    mask = jax.ShapeDtypeStruct((batch, length), jnp.bool_)

    def call(inputs: Array, mask: Array, types: Array) -> Any:
        return model.apply(variables, inputs, mask, types, deterministic=True)

    return export.export(jax.jit(call), platforms=platforms)(ids, mask, ids)
