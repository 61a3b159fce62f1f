import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention import stages
from tests.helpers import REFERENCE, SAME_ARITHMETIC, assert_close, normal, random_inputs

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
    landmark_mask = jax.random.bernoulli(next(rngs), 0.6, (2, 7))
    output = distribute(query, k_landmarks, values, landmark_mask=landmark_mask)
    assert_close(output, by_softmax(query, k_landmarks, values, landmark_mask), REFERENCE)


def test_distribute_adds_the_convolution_of_real_values(rngs):
    query, k_landmarks, values = random_inputs(rngs, 1, 11, 2, 3, key_length=5)
    value = normal(next(rngs), query.shape)
    mask = jnp.arange(11)[None] != 4
    kernel = jnp.array([[0.0, 0.0, 1.0], [0.0, 2.0, 0.0]])  # the next position, and twice this one
    plain = distribute(query, k_landmarks, values, landmark_mask=None)
    output = distribute(
        query,
        k_landmarks,
        values,
        landmark_mask=None,
        value=value.at[0, 4].set(jnp.nan),
        conv_kernel=kernel,
        mask=mask,
    )
    seen = value.at[0, 4].set(0)
    following = jnp.pad(seen, ((0, 0), (0, 1), (0, 0), (0, 0)))[:, 1:]
    expected = plain + jnp.stack([following[:, :, 0], 2 * seen[:, :, 1]], axis=2)
    assert_close(output, expected, SAME_ARITHMETIC)


def test_rejects_a_convolution_without_a_value(rngs):
    query, k_landmarks, values = random_inputs(rngs, 1, 11, 2, 3, key_length=5)
    with pytest.raises(ValueError, match="needs `value`"):
        distribute(query, k_landmarks, values, landmark_mask=None, conv_kernel=jnp.ones((2, 3)))


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("value", [[1.0]], "value must be a JAX or NumPy array"),
        ("value", jnp.ones((1, 12, 2, 3)), r"a value of shape \(1, 11, 2, 3\), got \(1, 12"),
        ("mask", jnp.ones((1, 11), int), "mask must be boolean, True at real values"),
        ("mask", jnp.ones((1, 12), bool), r"mask must have shape \(1, 11\)"),
    ],
)
def test_rejects_invalid_inputs_of_the_convolution(rngs, no_annotations, name, argument, message):
    query, k_landmarks, values = random_inputs(rngs, 1, 11, 2, 3, key_length=5)
    arguments = {"value": query, "mask": None, "conv_kernel": jnp.ones((2, 3)), name: argument}
    with pytest.raises(ValueError, match=message):
        stages.distribute(query, k_landmarks, values, landmark_mask=None, **arguments)


def test_accepts_numpy_arrays(rngs, no_annotations):
    arrays = random_inputs(rngs, 2, 23, 3, 5, key_length=7)
    float64 = [np.asarray(x, np.float64) for x in arrays]  # float32 without x64, and no warning
    for function in (
        lambda query, *kv: stages.collect(query, *kv, mask=None)[0],
        functools.partial(stages.distribute, landmark_mask=None),
    ):
        assert_close(function(*float64), function(*arrays), SAME_ARITHMETIC)


def test_errors_about_the_landmark_mask_name_landmarks(rngs, no_annotations):
    arguments = random_inputs(rngs, 1, 11, 2, 3, key_length=5)
    with pytest.raises(
        ValueError, match=r"landmark_mask must have shape \(1, 5\) .* landmarks with tokens"
    ):
        stages.distribute(*arguments, landmark_mask=jnp.ones((1, 4), bool))
