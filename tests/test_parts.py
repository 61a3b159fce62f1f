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
from nystromformer_jax import NystromformerForPreTraining, make_core
from nystromformer_jax.training import MeshConfig, TrainState, make_mesh, make_train_step
from tests.helpers import SAME_ARITHMETIC, assert_close, mask_of_lengths, random_variables
from tests.tiny_models import LABELS, VOCAB, config, variables_of

ROWS, LENGTH = 12, 24
LENGTHS = np.array([24, 1, 7, 24, 13, 2, 19, 24, 5, 11, 23, 17], np.int32)
WEIGHTS = np.array([1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 1, 0], np.float32)  # of unequal sum per part
MASK = np.asarray(mask_of_lengths(LENGTHS, LENGTH))
# Softmax, which compiles faster; contract suites test that attentions do not mix the rows of a batch.
LANGUAGE_MODEL = config(num_layers=1, attention="softmax")


def tokens(first=1):
    return np.random.default_rng(1).integers(first, VOCAB, (2, ROWS, LENGTH), np.int32)


def lra_case(kind):
    options = {"vocab_size": VOCAB, "max_len": LENGTH, "num_layers": 1, "dropout_rate": 0.0}
    sizes = ModelConfig(embed_dim=8, head_dim=4, mlp_dim=12, **options)
    model, (inputs, others) = kind(sizes, make_core("softmax"), LABELS), tokens()
    known = {"inputs": inputs, "mask": MASK, "positions": others[:, :4] % LENGTH}
    known |= {"inputs1": inputs, "mask1": MASK, "inputs2": others, "mask2": MASK[::-1]}
    batch = {key: known[key] for key in model.batch_keys}
    params = random_variables(jax.random.key(0), model, *map(jnp.asarray, batch.values()))["params"]
    labels = np.arange(ROWS * 4, dtype=np.int32).reshape(ROWS, 4) % LABELS
    batch["labels"] = labels if kind is Tagger else labels[:, 0]
    return train.make_loss(model), params, batch


def head_case(kind):
    head, random = HEADS[kind], np.random.default_rng(2)
    model = head.model_class(LANGUAGE_MODEL)
    shape = (ROWS, *head.label(LENGTH, LABELS).shape)
    labels = random.integers(0, 2, shape, np.int32)
    if kind == "token_classification":
        labels = np.where(random.random(shape) < 0.5, -1, labels)
    if kind == "regression":
        labels = random.normal(size=shape).astype(np.float32)
    inputs, types = tokens()
    batch = {"inputs": inputs, "mask": MASK, "types": types % 2, "labels": labels}
    return finetune.make_loss(model, head), variables_of(model)["params"], batch


def pretraining_case():
    starts = np.arange(VOCAB) % 3 > 0  # words of several tokens
    vocabulary = Vocabulary(mask_id=4, special_ids=(0, 1, 2, 3, 4), word_starts=starts)
    model = NystromformerForPreTraining(LANGUAGE_MODEL)
    first = np.maximum(LENGTHS // 2 - 2, 1)
    batch = {
        "inputs": tokens(first=5)[0],
        "first_len": first,
        "second_len": np.maximum(LENGTHS - first - 3, 1),
        "example": np.arange(ROWS, dtype=np.int32),
    }
    loss = pretrain.make_loss(model, vocabulary, ObjectiveConfig())
    return loss, variables_of(model)["params"], batch


CASES = {
    "classes": lambda: lra_case(Classifier),
    "pairs": lambda: lra_case(DualEncoder),
    "labeled tokens": lambda: lra_case(Tagger),
    "pretraining": pretraining_case,
    **{kind: lambda kind=kind: head_case(kind) for kind in HEADS},
}


@pytest.mark.slow_except("labeled tokens", "pretraining", "classification")
@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_to_the_whole_batch(name):
    loss_fn, params, batch = CASES[name]()
    batch = {**batch, "weights": WEIGHTS}
    mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), optax.sgd(1.0)
    shapes = jax.eval_shape(lambda params, batch: loss_fn(params, batch, None)[1], params, batch)

    def evaluation_loss(params, batch, dropout_rng):  # masked tokens depend on the random key
        return loss_fn(params, batch, None)

    def update(parts):
        step = make_train_step(evaluation_loss, optimizer, mesh, seed=0, accumulation=parts)
        state = TrainState(jnp.int32(0), jax.tree.map(jnp.copy, params), optimizer.init(params))
        totals = jax.tree.map(lambda _: jnp.float32(0), shapes | {"grad_norm": (0.0, 0.0)})
        state, sums, loss = step(state, totals, batch)
        return state.params, sums, loss

    with jax.numpy_dtype_promotion("strict"):  # users may set it
        parts = update(4)
    assert_close(parts, update(1), SAME_ARITHMETIC)
