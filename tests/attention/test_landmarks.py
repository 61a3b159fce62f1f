import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.attention.landmarks import (
    TokenRanks,
    _sums,
    _sums_by_product,
    segment_means,
    segment_sizes,
    segment_sums,
)
from tests.helpers import HALF, REFERENCE, SAME_ARITHMETIC, assert_close, normal

M = 7


@pytest.mark.parametrize("num_own", [0, 4, 6])
def test_segments_follow_the_rule_for_every_mask(rngs, num_own):
    """Landmarks of segments without tokens are zero and unused."""
    mask = np.array(jax.random.bernoulli(next(rngs), 0.5, (40, 29)))
    mask[:30] &= np.cumsum(mask[:30], axis=1) <= np.arange(30)[:, None] // 2  # 0 … 14 tokens
    expected, sizes = np.full(mask.shape, M), np.zeros((len(mask), M), int)
    for b, real in enumerate(mask):
        n = real.sum()
        for rank, position in enumerate(np.flatnonzero(real)):
            others = rank - num_own
            segment = num_own + others * (M - num_own) // max(n - num_own, 1)
            expected[b, position] = rank if others < 0 else segment
            sizes[b, expected[b, position]] += 1
    ranks = TokenRanks.create(jnp.asarray(mask))
    np.testing.assert_array_equal(ranks.segment_ids(M, num_own), expected)
    np.testing.assert_array_equal(segment_sizes(ranks.counts, M, num_own), sizes)
    x = normal(next(rngs), (*mask.shape, 2, 5))
    means, is_used = segment_means(x, M, jnp.asarray(mask), num_own_landmarks=num_own)
    members = (expected[:, None] == np.arange(M)[None, :, None]).astype(np.float32)
    sums = np.einsum("bml,blhd->bmhd", members, x)
    assert_close(means, sums / np.maximum(sizes, 1)[..., None, None], REFERENCE)
    np.testing.assert_array_equal(is_used, sizes > 0)


def test_sizes_of_a_million_tokens_in_thousands_of_segments():
    sizes = segment_sizes(jnp.array([2**20 + 1]), 4096)
    assert int(sizes.min()) == 256
    assert int(sizes.sum()) == 2**20 + 1
    ids = np.asarray(TokenRanks.create(jnp.ones((1, 2**20 + 1), bool)).segment_ids(4096))[0]
    assert (np.diff(ids) >= 0).all()
    np.testing.assert_array_equal(np.bincount(ids), sizes[0])


@pytest.mark.parametrize(
    ("masked", "length", "dtype"),
    [  # a length that is a multiple of the number of landmarks, and others
        (False, 24, jnp.bfloat16),
        (False, 23, jnp.float32),
        (True, 23, jnp.bfloat16),
    ],
)
def test_means_and_their_gradient_equal_those_of_numpy(rngs, masked, length, dtype):
    """Whatever padding contains; the gradient of a mean is one over the size of its segment."""
    x = normal(next(rngs), (3, length, 2, 5), dtype)
    real = np.random.default_rng(0).random((3, length)) < (0.6 if masked else 1)
    filled = jnp.where(real[..., None, None], x, jnp.nan)
    given = jnp.asarray(real) if masked else None
    own = functools.partial(segment_means, num_landmarks=4, mask=given)
    means, pull_back, landmark_mask = jax.vjp(own, filled, has_aux=True)
    (gradient,) = pull_back(jnp.ones_like(means))
    assert means.dtype == gradient.dtype == dtype
    assert landmark_mask.all()
    precision = SAME_ARITHMETIC if dtype == jnp.float32 else HALF
    for b, tokens in enumerate(np.float64(x)):
        segment = (np.arange(real[b].sum()) * 4) // real[b].sum()
        expected = [tokens[real[b]][segment == m].mean(0) for m in range(4)]
        assert_close(means[b], np.stack(expected), precision)
        shares = np.zeros(length)
        shares[real[b]] = 1 / np.bincount(segment)[segment]
        assert_close(gradient[b, :, 0, 0], shares, precision)


def test_sums_and_their_derivatives_between_any_bounds(rngs):
    x, ahead = np.asarray(normal(next(rngs), (2, 20, 45, 2, 3)))
    weights = normal(next(rngs), (20, 4, 2, 3))
    bounds = np.sort(np.random.default_rng(0).integers(0, 46, (20, 5)))
    member = (bounds[:, :-1, None] <= np.arange(45)) & (np.arange(45) < bounds[:, 1:, None])

    @jax.jit
    def derivatives(x, ahead, weights):
        sums = lambda x: segment_sums(x, jnp.asarray(bounds))
        return *jax.jvp(sums, (x,), (ahead,)), jax.vjp(sums, x)[1](weights)[0]

    expected = [np.einsum("BML,BLHD->BMHD", member, tokens) for tokens in (x, ahead)]
    expected.append(np.einsum("BML,BMHD->BLHD", member, weights))
    assert_close(list(derivatives(x, ahead, weights)), expected, SAME_ARITHMETIC)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_sums_for_tpus_equal_those_of_other_devices(rngs, dtype):
    x = normal(next(rngs), (2, 35, 3, 5), dtype)
    assert_close(_sums_by_product(x, 7), _sums(x, 7), REFERENCE)


def test_means_of_bfloat16_are_summed_in_float32():
    means, _ = segment_means(jnp.ones((1, 1031, 1, 1), jnp.bfloat16), 2)
    assert (means == 1).all()  # sums in bfloat16 would stop at 256


@pytest.mark.parametrize(("layout", "expected"), [("mlpen", [3, 3]), ("hf", [3, 8])])
def test_other_layouts_average_padding_as_zeros_or_as_it_is(layout, expected):
    x = jnp.array([2.0, 4.0, 6.0, 10.0]).reshape(1, 4, 1, 1)
    mask = jnp.array([[True, True, True, False]])
    means, landmark_mask = segment_means(x, 2, mask, layout=layout)
    np.testing.assert_array_equal(means[0, :, 0, 0], expected)
    assert landmark_mask.all()
