"""Changes the vocabulary size of a model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from nystromformer_jax.backbone import NystromformerConfig

PER_TOKEN = ("embeddings/word/embedding", "mlm/bias", "mlm/decoder")  # ends of paths


def resize_token_embeddings(
    model: Any, variables: Mapping[str, Any], vocab_size: int
) -> tuple[Any, dict[str, Any]]:
    """Returns the model and its variables with `vocab_size` tokens.

        model, variables = resize_token_embeddings(model, variables, len(tokenizer))

    The first rows of the token embeddings, and of the decoder and its bias, are kept. A new row is the mean
    of the old rows, except for the bias of a tied decoder, which is zero.

    Source: `resize_token_embeddings` of transformers 5.23.
    Differs: transformers adds random noise with 1e-9 times the covariance of the old rows.

    Raises:
      ValueError: `vocab_size` is not positive, or the parameters do not match the model.
    """
    config: NystromformerConfig = dataclasses.replace(model.config, vocab_size=vocab_size)
    params = flatten_dict(variables["params"], sep="/")
    for path, table in params.items():
        if not path.endswith(PER_TOKEN):
            continue
        if len(table) != model.config.vocab_size:
            raise ValueError(
                f"{path} needs {model.config.vocab_size} rows, the vocab_size of the model, got"
                f" {len(table)}: pass the model and variables of one checkpoint."
            )
        new_shape = (max(0, vocab_size - len(table)), *table.shape[1:])
        is_tied_bias = path.endswith("mlm/bias") and config.tie_word_embeddings
        value = 0 if is_tied_bias else table.mean(axis=0)
        new = jnp.broadcast_to(value, new_shape).astype(table.dtype)
        params[path] = jnp.concatenate([table[:vocab_size], new])
    return model.clone(config=config), {**variables, "params": unflatten_dict(params, sep="/")}
