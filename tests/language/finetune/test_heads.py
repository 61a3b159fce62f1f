"""Losses and correct predictions of each head, by their formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from language.finetune.heads import HEADS
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal

LOGITS = np.random.default_rng(3).normal(size=(2, 5, 3)).astype(np.float32)


def losses(kind, logits, labels):
    return HEADS[kind].losses(logits, jnp.asarray(labels), jnp.ones((2, 5), bool))


def cross_entropy(logits, label):
    return np.log(np.exp(np.float64(logits)).sum()) - logits[label]


def test_losses_of_classes():
    labels = [0, 2]
    found = losses("classification", LOGITS[:, 0], labels)
    expected = [cross_entropy(LOGITS[row, 0], label) for row, label in enumerate(labels)]
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.num_correct.tolist() == (LOGITS[:, 0].argmax(-1) == labels).tolist()
    assert found.num_labels.tolist() == [1, 1]


def test_losses_of_several_labels_are_sums_over_them():
    logits, labels = LOGITS[:, 0], np.array([[1, 0, 1], [0, 0, 1]])
    found = losses("multi_label", logits, labels)
    expected = np.logaddexp(0, np.where(labels, -logits, logits)).sum(-1)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.num_correct.tolist() == ((logits > 0) == labels).sum(-1).tolist()
    assert found.num_labels.tolist() == [3, 3]


def test_losses_of_scores_are_squares():
    found = losses("regression", LOGITS[:, 0, :1], [0.5, -2.0])
    assert found.loss == pytest.approx((LOGITS[:, 0, 0] - [0.5, -2.0]) ** 2, rel=1e-5)
    assert found.num_correct is None
    assert found.num_labels.tolist() == [1, 1]


def test_losses_of_words_ignore_tokens_without_a_tag():
    labels = np.array([[2, -1, 0, -1, -1], [-1, 1, 1, 2, -1]])
    found = losses("token_classification", LOGITS, labels)
    for row in range(2):
        words = np.flatnonzero(labels[row] >= 0)
        expected = sum(cross_entropy(LOGITS[row, i], labels[row, i]) for i in words)
        assert found.loss[row] == pytest.approx(expected, rel=1e-5)
        right = LOGITS[row, words].argmax(-1) == labels[row, words]
        assert (found.num_correct[row], found.num_labels[row]) == (right.sum(), len(words))


def test_an_answer_is_correct_if_both_ends_are():
    start, end = (np.eye(5, dtype=np.float32)[[i, i]] for i in (1, 3))
    found = losses("question_answering", (start, end), [[1, 3], [1, 2]])
    assert found.num_correct.tolist() == [True, False]


def test_the_loss_of_an_answer_does_not_depend_on_the_padded_length(rngs):
    logits = normal(next(rngs), (2, 3, 40))
    mask = mask_of_lengths([40, 17, 29], 40)
    labels = jnp.array([[3, 39], [0, 16], [5, 5]])
    head = HEADS["question_answering"]

    @jax.jit
    def run(logits, mask):
        def loss(logits):
            found = head.losses((logits[0], logits[1]), labels, mask)
            return found.loss.sum(), found

        return jax.value_and_grad(loss, has_aux=True)(logits)

    (_, short), gradient = run(logits, mask)
    wider = jnp.pad(logits, ((0, 0), (0, 0), (0, 24)), constant_values=7.0)
    (_, long), wide_gradient = run(wider, jnp.pad(mask, ((0, 0), (0, 24))))
    assert_close(long, short, REFERENCE)
    assert_close(wide_gradient[..., :40], gradient, REFERENCE)
    assert not wide_gradient[..., 40:].any()

    first = -jax.nn.log_softmax(logits[:, 1, :17])
    expected = (first[0, 0] + first[1, 16]) / 2
    assert_close(short.loss[1], expected, REFERENCE)
