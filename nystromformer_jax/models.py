"""BERT-style models: the backbone with a head for each kind of task."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.checks import check_ids, check_tokens, shape_or_type
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.backbone import (
    Embeddings,
    Nystromformer,
    NystromformerConfig,
    kernel_init,
    token_logits,
)
from nystromformer_jax.layers.encoder import ACTIVATIONS, EncoderBlock
from nystromformer_jax.typing import Array, Bool, Float, Int


def _dense(config: NystromformerConfig, features: int, name: str) -> nn.Dense:
    return nn.Dense(features, dtype=config.dtype, kernel_init=kernel_init(config), name=name)


def _logits(config: NystromformerConfig, features: int, name: str) -> nn.Dense:
    """Returns the last layer of a head, in float32 for any `config.dtype`."""
    return nn.Dense(features, dtype=jnp.float32, kernel_init=kernel_init(config), name=name)


def _classifier_dropout(config: NystromformerConfig) -> Dropout:
    rate = config.classifier_dropout_rate
    return Dropout(config.dropout_rate if rate is None else rate)


class MaskedTokenHead(nn.Module):
    """Dense layer, activation, layer norm, and a projection to the vocabulary with a bias.

    The projection is `attend`, or has a table of its own if `config.tie_word_embeddings` is False.
    """

    config: NystromformerConfig
    attend: Callable[[Array], Array]  # multiplies by the token embeddings

    @nn.compact
    def __call__(self, hidden: Float[Array, "B P E"]) -> Float[Array, "B P V"]:
        """Returns logits over the vocabulary, in float32."""
        config = self.config
        x = ACTIVATIONS[config.activation](_dense(config, config.embed_dim, "dense")(hidden))
        norm = nn.LayerNorm(epsilon=config.layer_norm_epsilon, dtype=config.dtype, name="norm")
        bias = self.param("bias", nn.initializers.zeros_init(), (config.vocab_size,), jnp.float32)
        attend = self.attend
        if not config.tie_word_embeddings:
            shape = (config.vocab_size, config.embed_dim)
            table = self.param("decoder", kernel_init(config), shape, jnp.float32)
            attend = functools.partial(token_logits, table=table)
        return attend(norm(x)) + bias[None, None]


class NystromformerForMaskedLM(nn.Module):
    """Predicts masked tokens: logits [B L V], or [B P V] at P positions."""

    config: NystromformerConfig
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        positions: Int[Array, "B P"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B P V"]:
        """Returns logits at `positions`; None: at all positions (P = L)."""
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        backbone = Nystromformer(self.config, name="nystromformer")
        hidden = backbone(inputs, mask, types, deterministic=deterministic)
        head = MaskedTokenHead(self.config, backbone.embeddings.attend, name="mlm")
        return head(_at(hidden, positions))


class NystromformerForPreTraining(nn.Module):
    """Predicts masked tokens, and whether two sentences are in order (class 0) or swapped (class 1).

    Source: order head of the authors' reorganized_code/BERT/model.py at 5689313: a dense layer with
    tanh on the first token (here: the first real token), dropout, and a second dense layer.
    """

    config: NystromformerConfig
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        positions: Int[Array, "B P"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> tuple[Float[Array, "B P V"], Float[Array, "B 2"]]:
        """Returns token logits as in `NystromformerForMaskedLM`, and sentence-order logits."""
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        config = self.config
        backbone = Nystromformer(config, name="nystromformer")
        hidden = backbone(inputs, mask, types, deterministic=deterministic)
        tokens = MaskedTokenHead(config, backbone.embeddings.attend, name="mlm")(
            _at(hidden, positions)
        )
        first = _first_token(hidden, mask)
        pooled = nn.tanh(_dense(config, config.embed_dim, "pooler")(first))
        pooled = Dropout(config.dropout_rate)(pooled, deterministic=deterministic)
        return tokens, _logits(config, 2, "sentence_order")(pooled)


class _ModelWithHead(nn.Module):
    """Applies the backbone, then `head`, which returns the hidden states unless a subclass defines it."""

    config: NystromformerConfig
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B L"],
        mask: Bool[Array, "B L"] | None = None,
        types: Int[Array, "B L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Any:
        """Returns the output of `head`; arguments are as in `Nystromformer`."""
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        backbone = Nystromformer(self.config, name="nystromformer")
        hidden = backbone(inputs, mask, types, deterministic=deterministic)
        return self.head(hidden, mask, deterministic=deterministic)

    def head(self, hidden: Array, mask: Array | None, *, deterministic: bool) -> Any:
        """Returns the last hidden states."""
        return hidden


class NystromformerForSequenceClassification(_ModelWithHead):
    """Classifies a sequence from its first real token: logits [B C]; C is 1 for regression.

    Differs: Hugging Face's BERT has dropout only after the first dense layer, not before it as well.
    """

    def head(
        self, hidden: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None, *, deterministic: bool
    ) -> Float[Array, "B C"]:
        """Returns logits, in float32."""
        config = self.config
        dropout = _classifier_dropout(config)
        first = dropout(_first_token(hidden, mask), deterministic=deterministic)
        activation = ACTIVATIONS[config.classifier_activation or config.activation]
        x = activation(_dense(config, config.embed_dim, "dense")(first))
        x = dropout(x, deterministic=deterministic)
        return _logits(config, config.num_labels, "output")(x)


class NystromformerForTokenClassification(_ModelWithHead):
    """Classifies every token: logits [B L C]."""

    def head(
        self, hidden: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None, *, deterministic: bool
    ) -> Float[Array, "B L C"]:
        """Returns logits, in float32."""
        config = self.config
        hidden = _classifier_dropout(config)(hidden, deterministic=deterministic)
        return _logits(config, config.num_labels, "output")(hidden)


class NystromformerForQuestionAnswering(_ModelWithHead):
    """Predicts the start and the end of an answer: two logits per token, each [B L]."""

    def head(
        self, hidden: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None, *, deterministic: bool
    ) -> tuple[Float[Array, "B L"], Float[Array, "B L"]]:
        """Returns start logits and end logits, in float32."""
        logits = _logits(self.config, 2, "output")(hidden)
        return logits[..., 0], logits[..., 1]


class NystromformerForMultipleChoice(nn.Module):
    """Scores N choices from the first real token of each sequence: logits [B N].

    Differs: Hugging Face's Nyströmformer has no dropout between the two dense layers, and RoBERTa's multiple
    choice does not use classifier_dropout.
    """

    config: NystromformerConfig
    deterministic: bool | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Int[Array, "B N L"],
        mask: Bool[Array, "B N L"] | None = None,
        types: Int[Array, "B N L"] | None = None,
        *,
        deterministic: bool | None = None,
    ) -> Float[Array, "B N"]:
        """Returns one logit per choice, in float32."""
        deterministic = nn.merge_param("deterministic", self.deterministic, deterministic)
        config = self.config
        check_tokens(inputs, types, "B N L")
        if mask is not None and getattr(mask, "shape", None) != inputs.shape:
            raise ValueError(
                f"mask must be an array of the shape of inputs, {inputs.shape}, and True at real tokens; got"
                f" {shape_or_type(mask)}."
            )
        mask, types = (None if x is None else x.reshape(-1, x.shape[-1]) for x in (mask, types))
        hidden = Nystromformer(config, name="nystromformer")(
            inputs.reshape(-1, inputs.shape[-1]), mask, types, deterministic=deterministic
        )
        x = _dense(config, config.embed_dim, "dense")(_first_token(hidden, mask))
        x = ACTIVATIONS[config.choice_activation](x)
        x = _classifier_dropout(config)(x, deterministic=deterministic)
        return _logits(config, 1, "output")(x).reshape(inputs.shape[:2])


def _first_token(
    hidden: Float[Array, "B L E"], mask: Bool[Array, "B L"] | None
) -> Float[Array, "B E"]:
    """Returns the hidden state of the first real token; a row may have padding in front of it."""
    if mask is None:
        return hidden[:, 0]
    return jnp.take_along_axis(hidden, mask.argmax(axis=1)[:, None, None], axis=1)[:, 0]


def _at(
    hidden: Float[Array, "B L E"], positions: Int[Array, "B P"] | None
) -> Float[Array, "B P E"]:
    """Returns the hidden states at `positions`, or all hidden states if `positions` is None."""
    if positions is None:
        return hidden
    if (
        not isinstance(positions, (jax.Array, np.ndarray))
        or positions.ndim != 2
        or positions.shape[0] != hidden.shape[0]
        or not jnp.issubdtype(positions.dtype, jnp.integer)
    ):
        raise ValueError(
            f"positions must be an integer array [B P] with B = {hidden.shape[0]}; got"
            f" {shape_or_type(positions)}."
        )
    check_ids("positions", positions, hidden.shape[1], "the length of inputs", advice="")
    return jnp.take_along_axis(hidden, positions[..., None], axis=1)


def hidden_states(
    model: nn.Module,
    variables: Mapping[str, Any],
    inputs: Int[Array, "B L"],
    mask: Bool[Array, "B L"] | None = None,
    types: Int[Array, "B L"] | None = None,
) -> list[Float[Array, "B L E"]]:
    """Returns the output of the embeddings and of each layer, without dropout.

    These are `config.num_layers` + 1 arrays; the last one is the output of `Nystromformer`. The head of
    `model` is not applied. For other outputs, pass Flax's `capture_intermediates` to `model.apply`.

    Args:
      model: A `Nystromformer`, or a model of this module.
      variables: {"params": …}.
      inputs: Token ids [B, L], also for a multiple-choice model.
      mask: True at real tokens.
      types: 0 in the first sentence, 1 in the second.
    """
    is_backbone = isinstance(model, Nystromformer)
    params = variables["params"]
    # Random features depend on the path of the backbone, so a backbone inside a model keeps its path
    # "nystromformer": `_ModelWithHead` applies it there and returns the hidden states.
    if not is_backbone:
        params = {"nystromformer": params["nystromformer"]}
    # Without the attribute `deterministic`, which the call sets.
    backbone = model.clone(deterministic=None) if is_backbone else _ModelWithHead(model.config)
    _, state = backbone.apply(
        {"params": params},
        inputs,
        mask,
        types,
        deterministic=True,
        capture_intermediates=lambda module, method: (
            isinstance(module, (Embeddings, EncoderBlock)) and method == "__call__"
        ),
        mutable=["intermediates"],
    )
    outputs = state["intermediates"]
    outputs = outputs if is_backbone else outputs["nystromformer"]
    layers = (outputs["encoder"][f"layer_{i}"] for i in range(model.config.num_layers))
    return [module["__call__"][0] for module in (outputs["embeddings"], *layers)]
