"""Attention with `num_own_landmarks`; other implementations are compared in contract.py."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from nystromformer_jax import (
    NystromformerConfig,
    nystrom_attention,
    nystrom_factors,
    segment_means,
    softmax_attention,
)
from nystromformer_jax.attention.arguments import mask_inputs
from nystromformer_jax.attention.functions import find_landmarks
from nystromformer_jax.attention.landmarks import TokenRanks, segment_sizes
from nystromformer_jax.attention.options import NystromOptions
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    assert_close,
    mask_of_lengths,
    masks_of_all_kinds,
    normal,
    nystrom_by_the_paper,
    random_inputs,
)

M, HEADS, DIM = 7, 2, 5


def with_holes(x, count, length):
    """Puts `count` tokens of `x` [L H D] at random positions, with NaN between them; returns their mask."""
    real = np.sort(np.random.default_rng(count).choice(length, count, replace=False))
    tokens, mask = np.full((length, *x.shape[1:]), np.nan, np.float32), np.zeros(length, bool)
    tokens[real], mask[real] = x[:count], True
    return tokens, mask


@pytest.mark.parametrize("num_own", [1, 3, 6])
def test_every_number_of_tokens_equals_the_formula_of_the_paper_whatever_the_padding(rngs, num_own):
    """Queries and keys have other numbers of tokens and other padding. Few tokens are exact."""
    counts = np.arange(1, 62)
    query, key, value = (np.asarray(x) for x in random_inputs(rngs, 61, 61, HEADS, DIM))
    queries = [with_holes(x, n, 89) for x, n in zip(query, counts, strict=True)]
    key_counts = 62 - counts
    keys, values = (
        [with_holes(x, n, 97) for x, n in zip(tokens, key_counts, strict=True)]
        for tokens in (key, value)
    )
    tokens = [jnp.stack([x for x, _ in rows]) for rows in (queries, keys, values)]
    query_mask, mask = (jnp.stack([mask for _, mask in rows]) for rows in (queries, keys))
    attend = functools.partial(nystrom_attention, num_landmarks=M, num_own_landmarks=num_own)
    output = np.asarray(jax.jit(attend)(*tokens, mask=mask, query_mask=query_mask))
    for b, (n, t) in enumerate(zip(counts, key_counts, strict=True)):
        example = query[b, :n], key[b, :t], value[b, :t]
        expected = nystrom_by_the_paper(*example, M, num_own=num_own)
        assert_close(output[b, np.asarray(query_mask[b])], expected, REFERENCE)


@pytest.mark.parametrize("num_own", [0, 1, 4, 6])
def test_segments_follow_the_rule_for_every_mask(rngs, num_own):
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
    x = normal(next(rngs), (*mask.shape, HEADS, DIM))
    means, is_used = segment_means(x, M, jnp.asarray(mask), num_own_landmarks=num_own)
    members = (expected[:, None] == np.arange(M)[None, :, None]).astype(np.float32)
    sums = np.einsum("bml,blhd->bmhd", members, x)
    assert_close(means, sums / np.maximum(sizes, 1)[..., None, None], REFERENCE)
    np.testing.assert_array_equal(is_used, sizes > 0)


def test_the_output_of_an_own_query_is_exact_once_the_pseudoinverse_has_converged(rngs):
    """Its row of kernel_1 is a row of kernel_2, so its row of the map is its row of kernel_3."""
    with jax.enable_x64(True):
        tokens = [x.astype(jnp.float64) for x in random_inputs(rngs, 2, 61, HEADS, DIM)]
        attend = functools.partial(nystrom_attention, *tokens, num_landmarks=M, pinv_iters=40)
        exact = softmax_attention(*tokens)
        assert_close(attend(num_own_landmarks=2)[:, :2], exact[:, :2], REFERENCE)
        assert (jnp.abs(attend()[:, :2] - exact[:, :2]).max(axis=(1, 3)) > 1e-2).all()


@pytest.mark.parametrize("masked", [False, True])
def test_kmeans_clusters_the_other_tokens_only(rngs, masked):
    """Own tokens are not clustered, so clusters do not depend on them."""
    query, key = (0.3 * normal(next(rngs), (8, 61, HEADS, DIM)) for _ in range(2))
    mask = masks_of_all_kinds(61, M) if masked else None
    options = NystromOptions(num_landmarks=M, num_own_landmarks=2, landmark_selection="kmeans")
    ranks = TokenRanks.create(jnp.ones((8, 61), bool) if mask is None else mask)
    is_own = ranks.mask & (ranks.rank < 2)

    @functools.partial(jax.jit, static_argnums=1)
    def landmarks(scale, options):
        tokens = [mask_inputs(x, mask, options) for x in (query, key)]
        tokens = [jnp.where(is_own[..., None, None], scale * x, x) for x in tokens]
        found = find_landmarks(*tokens, mask, mask, options)
        return found.q_landmarks, found.k_landmarks

    segments = landmarks(1.0, dataclasses.replace(options, landmark_selection="segments"))
    clusters, scaled = landmarks(1.0, options), landmarks(100.0, options)
    for one, other, cluster in zip(segments, scaled, clusters, strict=True):
        assert_close(cluster[:, :2], one[:, :2], SAME_ARITHMETIC)
        assert_close(other[:, :2], 100 * one[:, :2], SAME_ARITHMETIC)
        assert_close(other[:, 2:], cluster[:, 2:], SAME_ARITHMETIC)
        assert (jnp.abs(cluster[4, 2:] - one[4, 2:]).max(axis=(0, 2)) > 1e-3).all()


@pytest.mark.parametrize("selection", ["segments", "kmeans"])
def test_product_of_the_factors_equals_the_output(rngs, selection):
    query, key, value = random_inputs(rngs, 4, 35, HEADS, DIM, key_length=41)
    mask, query_mask = mask_of_lengths([41, 30, 2, 33], 41), mask_of_lengths([35, 20, 31, 1], 35)
    options = {"num_landmarks": M, "num_own_landmarks": 3, "landmark_selection": selection}
    options |= {"mask": mask, "query_mask": query_mask}
    factors = nystrom_factors(query, key, **options)
    product = factors.kernel_1 @ factors.inverse @ factors.kernel_3
    output = nystrom_attention(query, key, value, **options)
    expected = jnp.einsum("BHLT,BTHD->BLHD", product, value)
    assert_close(expected, output, REFERENCE, where=query_mask)


def test_gradients_agree_with_finite_differences(rngs):
    with jax.enable_x64(True):
        tokens = [x.astype(jnp.float64) for x in random_inputs(rngs, 2, 13, HEADS, DIM)]
        mask = mask_of_lengths([13, 9], 13)
        attend = functools.partial(nystrom_attention, num_landmarks=5, num_own_landmarks=2)
        real = jax.jit(lambda *x: jnp.where(mask[..., None, None], attend(*x, mask=mask), 0))
        check_grads(real, tokens, order=1, modes=["rev"])


@pytest.mark.parametrize("number", [-1, M, True])
def test_an_invalid_number_is_an_error_and_so_is_another_layout(rngs, number):
    tokens = random_inputs(rngs, 1, 14, HEADS, DIM)
    attend = functools.partial(nystrom_attention, *tokens, num_landmarks=M)
    of_config = functools.partial(NystromformerConfig, vocab_size=9, num_landmarks=M)
    of_means = functools.partial(segment_means, tokens[0], M)
    for call in (attend, of_config, of_means):
        with pytest.raises(ValueError, match="num_own_landmarks must be an integer"):
            call(num_own_landmarks=number)
    with pytest.raises(ValueError, match="needs landmark_layout='real', got 'hf'"):
        attend(num_own_landmarks=1, landmark_layout="hf")
