import jax
import jax.numpy as jnp

from language.heads import HEADS
from tests.helpers import REFERENCE, assert_close, mask_of_lengths, normal


def test_the_loss_of_an_answer_does_not_depend_on_the_padded_length(rngs):
    logits = normal(next(rngs), (2, 3, 40))
    mask = mask_of_lengths([40, 17, 29], 40)
    labels = jnp.array([[3, 39], [0, 16], [5, 5]])
    losses = HEADS["question_answering"].losses

    @jax.jit
    def run(logits, mask):
        def loss(logits):
            found = losses((logits[0], logits[1]), labels, mask)
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
