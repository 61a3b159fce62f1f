"""Heads for fine-tuning: model class, loss and outputs of each kind of task."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from language.finetune.examples import IGNORED
from language.finetune.task import Kind
from nystromformer_jax import (
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)
from nystromformer_jax.typing import Array


class Losses(NamedTuple):
    """Sums over the labels of each row, [B]."""

    loss: Array
    num_correct: Array | None  # number of correct predictions; None for regression
    num_labels: Array


class Head(NamedTuple):
    """Model, labels, losses and outputs of a kind of task. `logits` are what the model returns.

    Attributes:
      model_class: The model.
      label: Returns the shape and the dtype of a row's labels, given `max_len` and the number of labels.
      losses: `(logits, labels, mask) -> Losses`; `mask` is True at real tokens, [B L].
      outputs: Returns what the evaluation step keeps of the logits, by name; the first axis is the batch.
    """

    model_class: Any
    label: Callable[[int, int], jax.ShapeDtypeStruct]
    losses: Callable[[Any, Array, Array], Losses]
    outputs: Callable[[Any], dict[str, Array]]


def _classification_losses(logits: Array, labels: Array, mask: Array) -> Losses:
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return Losses(losses, logits.argmax(axis=-1) == labels, jnp.ones_like(losses))


def _regression_losses(logits: Array, labels: Array, mask: Array) -> Losses:
    losses = jnp.square(logits[:, 0] - labels)
    return Losses(losses, None, jnp.ones_like(losses))


def _multi_label_losses(logits: Array, labels: Array, mask: Array) -> Losses:
    losses = optax.sigmoid_binary_cross_entropy(logits, labels.astype(logits.dtype))
    right = ((logits > 0) == (labels > 0)).sum(axis=-1)
    return Losses(losses.sum(axis=-1), right, jnp.full_like(losses[:, 0], losses.shape[1]))


def _tagging_losses(logits: Array, labels: Array, mask: Array) -> Losses:
    counted = labels != IGNORED
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    right = counted & (logits.argmax(axis=-1) == labels)
    sums = (jnp.where(counted, losses, 0), right, counted)
    return Losses(*(values.sum(axis=1).astype(jnp.float32) for values in sums))


def _span_losses(logits: tuple[Array, Array], labels: Array, mask: Array) -> Losses:
    """Returns the mean loss of the first and the last token; a prediction is correct if both tokens are.

    Padding has no probability, so the loss does not depend on the padded length.
    """
    ends = jnp.stack(logits, axis=1)  # [B 2 L]
    masked = jnp.where(mask[:, None], ends, jnp.finfo(ends.dtype).min)
    losses = optax.softmax_cross_entropy_with_integer_labels(masked, labels).mean(axis=1)
    right = (masked.argmax(axis=-1) == labels).all(axis=1)
    return Losses(losses, right, jnp.ones_like(losses))


def _logits(logits: Array) -> dict[str, Array]:
    return {"logits": logits}


HEADS: Mapping[Kind, Head] = {
    "classification": Head(
        NystromformerForSequenceClassification,
        lambda max_len, num_labels: jax.ShapeDtypeStruct((), jnp.int32),
        _classification_losses,
        _logits,
    ),
    "regression": Head(
        NystromformerForSequenceClassification,
        lambda max_len, num_labels: jax.ShapeDtypeStruct((), jnp.float32),
        _regression_losses,
        _logits,
    ),
    "multi_label": Head(
        NystromformerForSequenceClassification,
        lambda max_len, num_labels: jax.ShapeDtypeStruct((num_labels,), jnp.int32),
        _multi_label_losses,
        _logits,
    ),
    "token_classification": Head(
        NystromformerForTokenClassification,
        lambda max_len, num_labels: jax.ShapeDtypeStruct((max_len,), jnp.int32),
        _tagging_losses,
        lambda logits: {"classes": logits.argmax(axis=-1)},
    ),
    "question_answering": Head(
        NystromformerForQuestionAnswering,
        lambda max_len, num_labels: jax.ShapeDtypeStruct((2,), jnp.int32),
        _span_losses,
        lambda logits: {"start": logits[0], "end": logits[1]},
    ),
}
