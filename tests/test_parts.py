"""The parts of a batch add up to the whole batch, for every loss of the trainers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from language import pretrain
from language.config import ObjectiveConfig
from language.finetune import run as finetune
from language.finetune.heads import HEADS
from language.masking import Vocabulary
from lra import train
from lra.models import Classifier, DualEncoder, ModelConfig, Tagger
from nystromformer_jax import NystromformerConfig, NystromformerForPreTraining, make_core
from nystromformer_jax.training import MeshConfig, TrainState, make_mesh, make_train_step
from tests.helpers import SAME_ARITHMETIC, assert_close, mask_of_lengths

ROWS, LENGTH, VOCABULARY, LABELS = 12, 24, 31, 3
LENGTHS = [24, 1, 7, 24, 13, 2, 19, 24, 5, 11, 23, 17]
WEIGHTS = np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0], np.float32)  # of unequal sum per part
CORE = make_core("nystrom", num_landmarks=5, conv_kernel_size=3)


def lra_case(kind):
    sizes = ModelConfig(
        vocab_size=VOCABULARY,
        max_len=LENGTH,
        num_layers=1,
        embed_dim=8,
        head_dim=4,
        mlp_dim=12,
        dropout_rate=0.0,
    )
    model = kind(sizes, CORE, LABELS)
    inputs = np.random.default_rng(1).integers(1, VOCABULARY, (2, ROWS, LENGTH), np.int32)
    mask = np.asarray(mask_of_lengths(LENGTHS, LENGTH))
    known = {"inputs": inputs[0], "mask": mask, "positions": inputs[1, :, :4] % LENGTH}
    known |= {"inputs1": inputs[0], "mask1": mask, "inputs2": inputs[1], "mask2": mask[::-1]}
    batch = {key: known[key] for key in model.batch_keys}
    arguments = [jnp.asarray(rows) for rows in batch.values()]
    params = model.init(jax.random.key(0), *arguments, deterministic=True)["params"]
    labels = np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4) % LABELS
    return (
        train.make_loss(model),
        params,
        {**batch, "labels": labels if kind is Tagger else labels[:, 0]},
    )


def language_config():
    return NystromformerConfig(
        vocab_size=VOCABULARY,
        embed_dim=8,
        num_heads=2,
        num_layers=1,
        mlp_dim=12,
        max_len=LENGTH,
        num_landmarks=5,
        num_labels=LABELS,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
    )


def head_case(kind):
    head, random = HEADS[kind], np.random.default_rng(2)
    model = head.model_class(language_config())
    shape = (ROWS, *head.label(LENGTH, LABELS).shape)
    labels = random.integers(0, 2, shape, np.int32)
    if kind == "token_classification":
        labels = np.where(random.random(shape) < 0.5, -1, labels)
    if kind == "regression":
        labels = random.normal(size=shape).astype(np.float32)
    inputs = random.integers(1, VOCABULARY, (ROWS, LENGTH), np.int32)
    params = model.init(jax.random.key(0), jnp.asarray(inputs), deterministic=True)["params"]
    batch = {
        "inputs": inputs,
        "mask": np.asarray(mask_of_lengths(LENGTHS, LENGTH)),
        "types": inputs % 2,
        "labels": labels,
    }
    return finetune.make_loss(model, head), params, batch


def pretraining_case():
    starts = np.arange(VOCABULARY) % 3 > 0  # words of several tokens
    vocabulary = Vocabulary(mask_id=4, special_ids=(0, 1, 2, 3, 4), word_starts=starts)
    model = NystromformerForPreTraining(language_config())
    inputs = np.random.default_rng(3).integers(5, VOCABULARY, (ROWS, LENGTH), np.int32)
    params = model.init(jax.random.key(0), jnp.asarray(inputs), deterministic=True)["params"]
    first = np.maximum(np.array(LENGTHS, np.int32) // 2 - 2, 1)
    batch = {
        "inputs": inputs,
        "first_len": first,
        "second_len": np.maximum(np.array(LENGTHS, np.int32) - first - 3, 1),
        "example": np.arange(ROWS, dtype=np.int32),
    }
    return pretrain.make_loss(model, vocabulary, ObjectiveConfig()), params, batch


CASES = {
    "classes": lambda: lra_case(Classifier),
    "pairs": lambda: lra_case(DualEncoder),
    "labeled tokens": lambda: lra_case(Tagger),
    "pretraining": pretraining_case,
    **{kind: lambda kind=kind: head_case(kind) for kind in HEADS},
}


@pytest.mark.slow_except("pairs", "pretraining", "labeled tokens", "classification", "regression")
@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_to_the_whole_batch(name):
    loss_fn, params, batch = CASES[name]()
    batch = {**batch, "weights": WEIGHTS}
    mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), optax.sgd(1.0)

    def evaluation_loss(params, batch, dropout_rng):  # masked tokens depend on the random key
        return loss_fn(params, batch, None)

    def update(parts):
        step = make_train_step(evaluation_loss, optimizer, mesh, seed=0, accumulation=parts)
        state = TrainState(jnp.int32(0), jax.tree.map(jnp.copy, params), optimizer.init(params))
        shapes = jax.eval_shape(loss_fn, params, batch, None)[1] | {"grad_norm": (0.0, 0.0)}
        state, sums, loss = step(state, jax.tree.map(lambda _: jnp.float32(0), shapes), batch)
        return state.params, sums, loss

    with jax.numpy_dtype_promotion("strict"):  # users may set it
        parts = update(4)
    assert_close(parts, update(1), SAME_ARITHMETIC)
