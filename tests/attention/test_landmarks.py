import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention.functions import nystrom_attention
from nystromformer_jax.attention.landmarks import (
    TokenRanks,
    _sums,
    _sums_by_product,
    segment_means,
    segment_sizes,
    segment_sums,
)
from tests.helpers import (
    HALF,
    HALF_GRADIENT,
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    normal,
    random_inputs,
)


def test_seven_tokens_are_divided_into_three_segments():
    ids = TokenRanks.create(jnp.ones((1, 7), bool)).segment_ids(3)
    np.testing.assert_array_equal(ids, [[0, 0, 0, 1, 1, 2, 2]])


def test_padding_is_in_no_segment():
    mask = jnp.array([[False, True, True, False, True, True, False]])
    np.testing.assert_array_equal(TokenRanks.create(mask).segment_ids(2), [[2, 0, 0, 2, 1, 1, 2]])


@pytest.mark.parametrize("num_landmarks", [1, 2, 7, 64])
def test_segments_are_ordered_and_differ_by_at_most_one_token(num_landmarks):
    counts = np.arange(1, 131)
    mask = np.arange(131)[None, :] < counts[:, None]
    ids = np.asarray(TokenRanks.create(jnp.asarray(mask)).segment_ids(num_landmarks))
    for count, row in zip(counts, ids, strict=True):
        real = row[:count]
        assert (np.diff(real) >= 0).all()
        sizes = np.bincount(real, minlength=num_landmarks)
        assert sizes.max() - sizes.min() <= 1
        assert (row[count:] == num_landmarks).all()


def test_sizes_of_a_million_tokens_in_thousands_of_segments():
    sizes = segment_sizes(jnp.array([2**20 + 1]), 4096)
    assert int(sizes.min()) == 256
    assert int(sizes.sum()) == 2**20 + 1
    ids = np.asarray(TokenRanks.create(jnp.ones((1, 2**20 + 1), bool)).segment_ids(4096))[0]
    assert (np.diff(ids) >= 0).all()
    np.testing.assert_array_equal(np.bincount(ids), sizes[0])


def test_means_equal_those_of_numpy_under_any_mask(rngs):
    x = normal(next(rngs), (3, 23, 2, 5))
    mask = jax.random.bernoulli(next(rngs), 0.6, (3, 23))
    means, landmark_mask, x, mask = jax.device_get((*segment_means(x, 4, mask), x, mask))
    for b in range(3):
        parts = x[b][mask[b]]
        segment = (np.arange(len(parts)) * 4) // len(parts)
        for m in range(4):
            assert_close(means[b, m], parts[segment == m].mean(0), SAME_ARITHMETIC)
    assert landmark_mask.all()


@pytest.mark.parametrize("length", [12, 13])
def test_no_mask_equals_a_mask_of_ones(rngs, length):
    x = normal(next(rngs), (2, length, 3, 5))
    without = segment_means(x, 4)
    assert_close(without, segment_means(x, 4, jnp.ones((2, length), bool)), SAME_ARITHMETIC)


def test_attention_over_uneven_segments_runs_in_half_precision(rngs):
    """XLA's CPU backend rejects some layouts of bfloat16 products, so the means must avoid them."""
    inputs = random_inputs(rngs, 3, 130, 2, 8)

    @jax.jit
    def gradients_and_output(*inputs):
        def total(*inputs):
            output = nystrom_attention(*inputs, pinv_iters=1).astype(jnp.float32)
            return (output**2).sum(), output

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(*inputs)

    expected_gradients, expected = gradients_and_output(*inputs)
    half = [x.astype(jnp.bfloat16) for x in inputs]
    gradients, output = gradients_and_output(*half)
    assert_close(output, expected, HALF)
    assert_close(gradients, expected_gradients, HALF_GRADIENT)


@pytest.mark.parametrize("length", [1, 8, 45, 64])
def test_sums_and_their_gradient_between_any_bounds(length):
    rng = np.random.default_rng(length)
    x = jnp.asarray(rng.normal(size=(20, length, 2, 3)), jnp.float32)
    bounds = jnp.asarray(np.sort(rng.integers(0, length + 1, (20, 5))))
    position = jnp.arange(length)[None, None]
    member = (bounds[:, :-1, None] <= position) & (position < bounds[:, 1:, None])
    sums, pull_back = jax.vjp(jax.jit(lambda x: segment_sums(x, bounds)), x)
    assert_close(sums, np.einsum("BML,BLHD->BMHD", member, x), SAME_ARITHMETIC)
    weights = jnp.asarray(rng.normal(size=sums.shape), jnp.float32)
    gradient = np.einsum("BML,BMHD->BLHD", member, weights)
    assert_close(pull_back(weights)[0], gradient, SAME_ARITHMETIC)
    _, tangent = jax.jvp(lambda x: segment_sums(x, bounds), (x,), (jnp.flip(x),))
    expected = np.einsum("BML,BLHD->BMHD", member, jnp.flip(x))
    assert_close(tangent, expected, SAME_ARITHMETIC)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sums_for_tpus_equal_those_of_other_devices(rngs, dtype):
    x = normal(next(rngs), (2, 35, 3, 5), dtype)
    assert_close(_sums_by_product(x, 7), _sums(x, 7), REFERENCE)


def test_padding_anywhere_changes_nothing(rngs):
    x = normal(next(rngs), (1, 11, 2, 3))
    positions = [1, 2, 5, 6, 7, 8, 12, 13, 14, 15, 17]
    padded = np.full((1, 19, 2, 3), np.nan, np.float32)
    padded[:, positions] = x
    mask = np.isin(np.arange(19), positions)[None]
    means, _ = segment_means(jnp.asarray(padded), 4, jnp.asarray(mask))
    assert_close(means, segment_means(x, 4)[0], SAME_ARITHMETIC)


def test_dead_landmarks_are_zero():
    x = jnp.arange(1.0, 4.0).reshape(1, 3, 1, 1)
    means, landmark_mask = segment_means(x, 5, jnp.ones((1, 3), bool))
    np.testing.assert_array_equal(landmark_mask[0], [True, True, False, True, False])
    np.testing.assert_array_equal(means[0, :, 0, 0], [1, 2, 0, 3, 0])


def test_layout_of_the_authors_averages_padding_as_zeros():
    x = jnp.array([2.0, 4.0, 6.0, jnp.nan]).reshape(1, 4, 1, 1)
    means, landmark_mask = segment_means(
        x, 2, jnp.array([[True, True, True, False]]), layout="mlpen"
    )
    np.testing.assert_array_equal(means[0, :, 0, 0], [3.0, 3.0])
    assert landmark_mask.all()


def test_layout_of_hugging_face_averages_padding():
    x = jnp.array([2.0, 4.0, 6.0, 10.0]).reshape(1, 4, 1, 1)
    means, landmark_mask = segment_means(x, 2, jnp.array([[True, True, True, False]]), layout="hf")
    np.testing.assert_array_equal(means[0, :, 0, 0], [3.0, 8.0])
    assert landmark_mask.all()


def test_gradient_of_a_mean_is_one_over_the_segment_length():
    mask = jnp.array([[True, False, True, True, True]])
    total = lambda x: segment_means(x, 2, mask)[0][0, :, 0, 0] @ jnp.array([1.0, 10.0])
    gradient = jax.jit(jax.grad(total))(jnp.zeros((1, 5, 1, 1)))
    np.testing.assert_allclose(gradient[0, :, 0, 0], [0.5, 0, 0.5, 5, 5])


def test_means_of_bfloat16_are_summed_in_float32():
    x = jnp.ones((1, 1031, 1, 1), jnp.bfloat16)
    means, _ = segment_means(x, 2, jnp.ones((1, 1031), bool))
    assert means.dtype == jnp.bfloat16
    assert (means == 1).all()  # sums in bfloat16 would stop at 256


def test_gradients_of_bfloat16_are_near_those_of_float32(rngs):
    x, mask = normal(next(rngs), (2, 131, 2, 3)), jnp.ones((2, 131), bool)
    weights = normal(next(rngs), (2, 7, 2, 3))
    total = lambda x: (segment_means(x, 7, mask)[0].astype(jnp.float32) * weights).sum()
    half = jax.jit(jax.grad(total))(x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    assert_close(half, jax.jit(jax.grad(total))(x), HALF_GRADIENT)


@pytest.mark.parametrize(
    ("num_landmarks", "layout", "words"),
    [
        (0, "real", "num_landmarks"),
        (3, "mlpen", "not a multiple of M = 3"),
        (2, "rael", "'real', 'mlpen', 'hf'"),
    ],
)
def test_rejects_invalid_layouts_and_numbers(num_landmarks, layout, words, no_annotations):
    with pytest.raises(ValueError, match=words):
        segment_means(jnp.ones((1, 8, 1, 1)), num_landmarks, layout=layout)


def test_rejects_invalid_shapes_and_masks(no_annotations):
    x = jnp.ones((2, 8, 1, 3))
    for arguments in (
        (x[0], 2),
        (x, 2, jnp.ones((2, 7), bool)),
        (x, 2, jnp.ones((2, 8), jnp.int32)),
    ):
        with pytest.raises(ValueError, match=r"^x must be|^mask must"):
            segment_means(*arguments)


def test_rejects_empty_arrays(no_annotations):
    for shape in ((0, 8, 1, 3), (2, 0, 1, 3), (2, 8, 0, 3), (2, 8, 1, 0)):
        with pytest.raises(ValueError, match="x must be a non-empty array"):
            segment_means(jnp.ones(shape), 2)
