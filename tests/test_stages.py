import jax
import jax.numpy as jnp

from nystromformer_jax import stages
from tests.helpers import REFERENCE, assert_close, random_inputs

collect, distribute = jax.jit(stages.collect), jax.jit(stages.distribute)


@jax.jit
def by_softmax(query, key, value, mask):
    logits = jnp.einsum("BLHD,BTHD->BHLT", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], logits, -jnp.inf), axis=-1)
    return jnp.einsum("BHLT,BTHD->BLHD", weights, value)


def test_collected_values_over_their_sum_equal_attention(rngs):
    q_landmarks, key, value = random_inputs(rngs, 3, 7, 2, 5, key_length=23)
    mask = jax.random.bernoulli(next(rngs), 0.6, (3, 23))
    values, _, total = collect(q_landmarks, key, value, mask=mask)
    assert_close(values / total[..., None], by_softmax(q_landmarks, key, value, mask), REFERENCE)


def test_parts_of_a_sequence_combine_to_the_full_result(rngs):
    q_landmarks, key, value = random_inputs(rngs, 3, 7, 2, 5, key_length=23)
    mask = jax.random.bernoulli(next(rngs), 0.6, (3, 23)).at[0, 11:].set(False)
    parts = [
        collect(q_landmarks, key[:, cut], value[:, cut], mask=mask[:, cut])
        for cut in (slice(0, 11), slice(11, 23))
    ]
    common = jnp.maximum(parts[0][1], parts[1][1])
    weights = [jnp.exp(maximum - common) for _, maximum, _ in parts]
    values = sum(w[..., None] * part[0] for w, part in zip(weights, parts, strict=True))
    total = sum(w * part[2] for w, part in zip(weights, parts, strict=True))
    whole, _, whole_total = collect(q_landmarks, key, value, mask=mask)
    assert_close(values / total[..., None], whole / whole_total[..., None], REFERENCE)


def test_the_maximum_carries_no_gradient(rngs):
    inputs = random_inputs(rngs, 2, 3, 2, 5, key_length=7)
    gradients = jax.grad(lambda *x: collect(*x, mask=None)[1].sum(), argnums=(0, 1, 2))(*inputs)
    assert all((gradient == 0).all() for gradient in gradients)


def test_distribute_equals_attention_to_live_landmarks(rngs):
    query, k_landmarks, values = random_inputs(rngs, 2, 23, 3, 5, key_length=7)
    alive = jax.random.bernoulli(next(rngs), 0.6, (2, 7))
    output = distribute(query, k_landmarks, values, landmark_mask=alive)
    assert_close(output, by_softmax(query, k_landmarks, values, alive), REFERENCE)
