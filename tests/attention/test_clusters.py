"""Landmarks by content: attention with `landmark_selection="kmeans"`."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import approximation_error, nystrom_attention
from nystromformer_jax.attention.arguments import mask_inputs
from nystromformer_jax.attention.clusters import cluster_landmarks
from nystromformer_jax.attention.functions import find_landmarks
from nystromformer_jax.attention.landmarks import LandmarkMeans, TokenRanks, segment_means
from nystromformer_jax.attention.options import NystromOptions
from tests.attention.contract import assert_independent_of_padding_and_batch
from tests.helpers import (
    REFERENCE,
    SAME_ARITHMETIC,
    Tolerance,
    assert_close,
    masks_of_all_kinds,
    normal,
)

B, L, M, H, D = 2, 61, 7, 3, 5
KMEANS = {"landmark_selection": "kmeans"}
on_one_device = jax.jit(functools.partial(cluster_landmarks, psum=lambda x: x))


def separate_clusters(rngs):
    """Returns tokens [B L H D] near M far centers, in random order, and the cluster [L] of each."""
    centers = 20 * normal(next(rngs), (B, M, H, D))
    ids = jax.random.permutation(next(rngs), jnp.arange(L) % M)
    return centers[:, ids] + 0.1 * normal(next(rngs), (B, L, H, D)), ids


@pytest.mark.slow_except("between")
@pytest.mark.parametrize("padding", ["ends", "between"])
def test_an_example_in_a_padded_batch_equals_the_example_alone(rngs, padding):
    assert_independent_of_padding_and_batch(rngs, padding, KMEANS)


@pytest.mark.slow_except("query")
@pytest.mark.parametrize("similar", ["query", "key"])
def test_landmarks_are_the_means_of_clusters_if_the_tokens_of_the_other_side_are_similar(
    rngs, similar
):
    """The logits then hardly vary, so both sides use their clusters; padding is in none."""
    side = similar == "query"  # the index of the side whose tokens differ
    tokens, ids = separate_clusters(rngs)
    mask = jnp.broadcast_to(jnp.arange(L) % 5 != 2, (B, L))
    tokens = jnp.where(mask[..., None, None], tokens, 0)
    pair = [tokens, tokens]
    pair[not side] = 1e-3 * tokens
    segments = [LandmarkMeans(*segment_means(x, M, mask), TokenRanks.create(mask)) for x in pair]
    clusters = on_one_device(*pair, *segments)
    for one, other in zip(clusters, segments, strict=True):
        assert (jnp.abs(one.means - other.means).max(axis=(1, 3)) > 1e-4).all()
    tokens, real, ids, found = jax.device_get((tokens, mask[0], ids, clusters[side].means))
    expected = np.stack([tokens[:, real & (ids == m)].mean(axis=1) for m in range(M)], axis=1)
    for b, h in np.ndindex(B, H):
        own = found[b, :, h], expected[b, :, h]
        assert_close(*(x[x[:, 0].argsort()] for x in own), REFERENCE)


def test_clusters_reduce_the_error_and_are_not_used_for_sharp_attention():
    rngs = jax.random.split(jax.random.key(0), 5)
    query, key, value = jax.random.normal(rngs[0], (3, 1, 1024, 4, 32))
    centers = 1.5 * jax.random.normal(rngs[1], (1, 32, 4, 32))
    shuffled = jax.random.permutation(rngs[2], jnp.repeat(centers, 32, axis=1), axis=1)

    @jax.jit
    def error(query, key):
        errors = approximation_error(query, key, value, num_landmarks=64, **KMEANS)
        return errors.nystrom.mean()

    assert error(shuffled + 0.25 * query, shuffled + 0.25 * key) < 0.12
    assert error(query, key) < 0.65  # segments: 0.76
    assert error(2 * query, 2 * key) < 1.05  # clusters: 1.36


def test_own_tokens_are_landmarks_and_clusters_do_not_depend_on_them(rngs):
    query, key = (0.3 * normal(next(rngs), (8, L, H, D)) for _ in range(2))
    mask = masks_of_all_kinds(L, M)
    options = NystromOptions(num_landmarks=M, num_own_landmarks=2, **KMEANS)
    ranks = TokenRanks.create(mask)
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


def test_equal_tokens_give_their_value(rngs):
    tokens = jnp.broadcast_to(normal(next(rngs), (1, 1, H, D)), (1, L, H, D))
    output = nystrom_attention(tokens, tokens, tokens, num_landmarks=M, **KMEANS)
    assert_close(output, tokens, Tolerance(1e-3))


@pytest.mark.slow_except("3-61")
@pytest.mark.parametrize(("kinds", "length"), [(3, 61), (40, 300)])
def test_gradient_equals_finite_differences(rngs, kinds, length):
    """With fewer kinds of tokens than landmarks, a cluster without tokens keeps its initial center."""
    with jax.enable_x64(True):
        kind, direction = normal(next(rngs), (2, 3, kinds, H, D), jnp.float64)
        tokens = np.random.default_rng(5).integers(0, kinds, (3, length))
        holes = np.random.default_rng(6).random(length) < 0.9
        mask = jnp.asarray([np.ones(length, bool), np.arange(length) < 2 * length // 3, holes])

        @jax.jit
        @jax.value_and_grad
        def loss(size):
            inputs = (kind + size * direction)[:, tokens]
            output = nystrom_attention(*inputs, mask=mask, num_landmarks=length // 5, **KMEANS)
            return (jnp.sin(output) * mask[..., None, None]).sum()

        difference = float(loss(1e-6)[0] - loss(-1e-6)[0]) / 2e-6
        assert float(loss(0.0)[1]) == pytest.approx(difference, rel=1e-5)
