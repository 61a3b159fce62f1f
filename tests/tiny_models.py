"""Small BERT-style models with random variables."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)
from tests.helpers import random_variables

VOCAB, EMBED, LABELS, MAX_LEN = 31, 12, 5, 29
CONFIG = NystromformerConfig(
    vocab_size=VOCAB,
    max_len=MAX_LEN,
    embed_dim=EMBED,
    num_layers=2,
    num_heads=3,
    mlp_dim=7,
    num_landmarks=5,
    conv_kernel_size=3,
    num_labels=LABELS,
)
ONE_LAYER = dataclasses.replace(CONFIG, num_layers=1)
BATCH, LENGTH = 2, 23
ONE_SEQUENCE = [
    Nystromformer,
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
    NystromformerForQuestionAnswering,
]


def config(**changes):
    return dataclasses.replace(CONFIG, **changes)


def tokens(rngs, *shape):
    return jax.random.randint(next(rngs), shape, 0, VOCAB)


@functools.cache
def variables_of(model):
    """Random variables, sharp enough that attention is not uniform."""
    axes = 3 if isinstance(model, NystromformerForMultipleChoice) else 2
    inputs = jnp.zeros((1,) * (axes - 1) + (model.config.max_len,), jnp.int32)
    return random_variables(jax.random.key(0), model, inputs)


@functools.cache
def compiled(model):
    return jax.jit(functools.partial(model.apply, variables_of(model), deterministic=True))


def parameters(model, inputs=(1, 7)):
    init = model.clone(deterministic=True).init  # the argument, and here the attribute
    shapes = jax.eval_shape(init, jax.random.key(0), jnp.zeros(inputs, jnp.int32))
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))
