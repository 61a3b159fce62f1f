import functools

import jax
import jax.numpy as jnp
import pytest

from nystromformer_jax import depthwise_convolution
from nystromformer_jax.attention import stages
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, normal, random_inputs

collect, distribute = jax.jit(stages.collect), jax.jit(stages.distribute)
by_softmax = jax.jit(jax.nn.dot_product_attention)


def test_parts_of_a_sequence_combine_to_softmax_attention(rngs):
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
    assert_close(
        values / total[..., None],
        by_softmax(q_landmarks, key, value, mask=mask[:, None, None]),
        REFERENCE,
    )


def test_the_maximum_carries_no_gradient(rngs):
    inputs = random_inputs(rngs, 2, 3, 2, 5, key_length=7)
    gradients = jax.grad(lambda *x: collect(*x, mask=None)[1].sum(), argnums=(0, 1, 2))(*inputs)
    assert all((gradient == 0).all() for gradient in gradients)


def test_distribute_equals_attention_to_live_landmarks(rngs):
    query, k_landmarks, values = random_inputs(rngs, 2, 23, 3, 5, key_length=7)
    landmark_mask = jax.random.bernoulli(next(rngs), 0.6, (2, 7))
    output = distribute(query, k_landmarks, values, landmark_mask=landmark_mask)
    expected = by_softmax(query, k_landmarks, values, mask=landmark_mask[:, None, None])
    assert_close(output, expected, REFERENCE)


def test_distribute_adds_the_convolution_of_real_values(rngs):
    query, k_landmarks, values = random_inputs(rngs, 1, 11, 2, 3, key_length=5)
    value, kernel = normal(next(rngs), query.shape), normal(next(rngs), (2, 3))
    attend = functools.partial(distribute, query, k_landmarks, values, landmark_mask=None)
    masked = {"value": value.at[0, 4].set(jnp.nan), "mask": jnp.arange(11)[None] != 4}
    convolved = depthwise_convolution(value.at[0, 4].set(0), kernel)
    assert_close(attend(**masked, conv_kernel=kernel), attend() + convolved, SAME_ARITHMETIC)


def test_rows_and_columns_of_dead_landmarks_are_zero(rngs):
    q_landmarks, k_landmarks, _ = random_inputs(rngs, 2, 5, 2, 3)
    q_landmark_mask = jnp.array([[True, False, True, True, True], [True] * 5])
    k_landmark_mask = jnp.array([[True, True, True, False, True], [True] * 5])
    kernel = stages.landmark_kernel(q_landmarks, k_landmarks, q_landmark_mask, k_landmark_mask)
    assert (kernel[0, :, 1] == 0).all()
    assert (kernel[0, :, :, 3] == 0).all()
    sums = kernel.sum(axis=-1)
    expected = jnp.broadcast_to(q_landmark_mask[:, None].astype(jnp.float32), sums.shape)
    assert_close(sums, expected, SAME_ARITHMETIC)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"value": jnp.ones((2, 6, 3, 4))}, r"\(2, 5, 3, 4\)"),
        ({"value": None}, "value"),
        ({"value": [[1.0]]}, "array"),
        ({"mask": jnp.ones((2, 5), int)}, "boolean"),
        ({"mask": jnp.ones((2, 4), bool)}, r"\(2, 5\)"),
        ({"landmark_mask": jnp.ones((2, 3), bool)}, "landmarks with tokens"),
    ],
)
def test_distribute_rejects_invalid_arguments(no_annotations, changes, word):
    value = jnp.ones((2, 5, 3, 4))
    valid = {"landmark_mask": None, "value": value, "conv_kernel": jnp.ones((3, 3))}
    with pytest.raises(ValueError, match=word):
        stages.distribute(value, value[:, :2], value[:, :2], **valid | changes)
