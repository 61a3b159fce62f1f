"""Landmarks by content: attention with `landmark_selection="kmeans"`."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import approximation_error, nystrom_attention, softmax_attention
from nystromformer_jax.attention.clusters import cluster_landmarks
from nystromformer_jax.attention.landmarks import LandmarkMeans, TokenRanks, segment_means
from tests.helpers import (
    HALF,
    REFERENCE,
    SAME_ARITHMETIC,
    Tolerance,
    assert_close,
    mask_of_lengths,
    normal,
)

B, L, M, H, D = 2, 61, 7, 3, 5
KMEANS = {"landmark_selection": "kmeans"}
attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=M, **KMEANS))


on_one_device = jax.jit(functools.partial(cluster_landmarks, psum=lambda x: x))


def separate_clusters(rngs):
    """Returns tokens [B L H D] near M far centers, in random order, and the cluster [L] of each."""
    centers = 20 * normal(next(rngs), (B, M, H, D))
    ids = jax.random.permutation(next(rngs), jnp.arange(L) % M)
    return centers[:, ids] + 0.1 * normal(next(rngs), (B, L, H, D)), ids


@pytest.mark.slow_except("True")
@pytest.mark.parametrize("masked", [False, True])
def test_landmarks_are_the_means_of_separate_clusters(rngs, masked):
    tokens, ids = separate_clusters(rngs)
    real = jnp.arange(L) % 5 != 2 if masked else jnp.ones(L, bool)
    tokens = jnp.where(real[:, None, None], tokens, 0)
    mask = jnp.broadcast_to(real, (B, L)) if masked else None
    segments = LandmarkMeans(
        *segment_means(tokens, M, mask), TokenRanks.create(mask) if masked else None
    )
    # With almost equal queries, the logits hardly vary, and the clusters are used.
    _, keys = on_one_device(1e-3 * tokens, tokens, segments, segments)
    tokens, real, ids, keys = jax.device_get((tokens, real, ids, keys))
    expected = np.stack([tokens[:, real & (ids == m)].mean(axis=1) for m in range(M)], axis=1)
    for found, own in (
        (keys.means[b, :, h], expected[b, :, h]) for b in range(B) for h in range(H)
    ):
        assert_close(found[found[:, 0].argsort()], own[own[:, 0].argsort()], REFERENCE)


@pytest.mark.parametrize("similar", ["query", "key"])
def test_clusters_are_used_if_the_tokens_of_the_other_side_are_similar(rngs, similar):
    """The logits then hardly vary, and both sides use their clusters."""
    query, key = (separate_clusters(rngs)[0] for _ in range(2))
    query, key = (1e-3 * query, key) if similar == "query" else (query, 1e-3 * key)
    segments = [LandmarkMeans(*segment_means(x, M)) for x in (query, key)]
    found = on_one_device(query, key, *segments)
    for one, other in zip(found, segments, strict=True):
        assert (jnp.abs(one.means - other.means).max(axis=(1, 3)) > 1e-4).all()


def test_clusters_reduce_the_error_and_are_not_used_for_sharp_attention():
    rngs = jax.random.split(jax.random.key(0), 5)
    query, key, value = jax.random.normal(rngs[0], (3, 1, 1024, 4, 32))
    centers = 1.5 * jax.random.normal(rngs[1], (1, 32, 4, 32))
    shuffled = jax.random.permutation(rngs[2], jnp.repeat(centers, 32, axis=1), axis=1)

    @functools.partial(jax.jit, static_argnums=2)
    def error(query, key, num_landmarks):
        errors = approximation_error(query, key, value, num_landmarks=num_landmarks, **KMEANS)
        return errors.nystrom.mean()

    clusters = shuffled + 0.25 * query, shuffled + 0.25 * key
    assert error(*clusters, 32) < 0.12
    assert error(*clusters, 64) < 0.12
    assert error(query, key, 64) < 0.65  # segments: 0.76
    assert error(2 * query, 2 * key, 64) < 1.05  # clusters: 1.36


@pytest.mark.parametrize(("rank", "num_landmarks"), [(4, 32), (8, 64), (32, 64)])
def test_clusters_are_not_used_for_sharp_attention_of_any_rank(rank, num_landmarks):
    """Queries and keys of 64 dimensions vary in `rank` of them; the logits have a deviation of 6."""
    rngs = jax.random.split(jax.random.key(0), 3)
    basis = jnp.linalg.qr(normal(rngs[0], (64, 64)))[0][:rank]
    tokens = (36 * 64 / rank) ** 0.25 * normal(rngs[1], (2, 1, 1024, 2, rank)) @ basis
    value = normal(rngs[2], (1, 1024, 2, 64))
    expected = nystrom_attention(*tokens, value, num_landmarks=num_landmarks)
    output = nystrom_attention(*tokens, value, num_landmarks=num_landmarks, **KMEANS)
    assert_close(output, expected, SAME_ARITHMETIC)


@pytest.mark.parametrize("num_landmarks", [M, 11])  # 56 and 88 samples of 61 tokens
def test_padding_changes_nothing_at_real_tokens_whatever_it_contains(rngs, num_landmarks):
    noise = normal(next(rngs), (3, B, L, H, D))
    ids = jax.random.permutation(next(rngs), jnp.arange(L) % 17)
    tokens = normal(next(rngs), (3, B, 17, H, D))[:, :, ids] + 0.3 * noise
    attend = jax.jit(functools.partial(nystrom_attention, num_landmarks=num_landmarks, **KMEANS))
    expected = attend(*tokens)
    segments = nystrom_attention(*tokens, num_landmarks=num_landmarks)
    assert (jnp.abs(expected - segments).max(axis=1) > 1e-2).any()  # clusters are used
    padded = jnp.pad(tokens, ((0, 0), (0, 0), (4, 9), (0, 0), (0, 0)), constant_values=jnp.nan)
    mask = jnp.zeros((B, L + 13), bool).at[:, 4:-9].set(True)
    output = attend(*padded, mask=mask)
    assert_close(output[:, 4:-9], expected, REFERENCE)


def test_an_example_does_not_depend_on_the_others(rngs):
    tokens = normal(next(rngs), (3, B, L, H, D))
    mask = mask_of_lengths([L, 29], L)
    together = attend(*tokens, mask=mask)
    alone = attend(*tokens[:, 1:], mask=mask[1:])
    assert_close(together[1:], alone, SAME_ARITHMETIC)


def test_few_tokens_give_softmax_attention(rngs):
    query, key, value = (normal(next(rngs), (3, L, H, D)) for _ in range(3))
    mask = mask_of_lengths([M, 3, 0], L)
    output = attend(query, key, value, mask=mask)
    expected = softmax_attention(query, key, value, mask=mask)
    assert_close(output[:2], expected[:2], REFERENCE, where=mask[:2])
    assert jnp.isfinite(output).all()


def test_equal_tokens_give_their_value(rngs):
    tokens = jnp.broadcast_to(normal(next(rngs), (1, 1, H, D)), (1, L, H, D))

    def loss(x):
        output = attend(x, x, x)
        return output.mean(), output

    (_, output), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(tokens)
    assert_close(output, tokens, Tolerance(1e-3))
    assert jnp.isfinite(gradient).all()


def test_gradient_equals_finite_differences(rngs):
    with jax.enable_x64(True):
        query, key, value = (separate_clusters(rngs)[0] for _ in range(3))
        inputs = jnp.stack([query / 20, key / 20, value]).astype(jnp.float64)
        direction = normal(next(rngs), inputs.shape, jnp.float64)
        mask = mask_of_lengths([L, 44], L)

        @jax.jit
        def loss(size):
            query, key, value = inputs + size * direction
            output = nystrom_attention(query, key, value, mask=mask, num_landmarks=M, **KMEANS)
            return (jnp.sin(output) * mask[..., None, None]).sum()

        difference = float(loss(1e-5) - loss(-1e-5)) / 2e-5
        assert jax.jit(jax.grad(loss))(0.0) == pytest.approx(difference, rel=1e-6)


@pytest.mark.slow_except("3")
@pytest.mark.parametrize("kinds", [3, 40])
def test_gradient_of_empty_clusters_equals_finite_differences(rngs, kinds):
    """With fewer kinds of tokens than landmarks, a cluster without tokens keeps its initial center."""
    with jax.enable_x64(True):
        kind, direction = normal(next(rngs), (2, 3, kinds, H, D), jnp.float64)
        tokens = np.random.default_rng(5).integers(0, kinds, (2, 300))
        holes = np.random.default_rng(6).random((2, 300)) < 0.9
        for mask in (None, mask_of_lengths([300, 211], 300), jnp.asarray(holes)):
            weights = 1 if mask is None else mask[..., None, None]

            @jax.jit
            def loss(size, mask=mask, weights=weights):
                inputs = (kind + size * direction)[:, tokens]
                output = nystrom_attention(*inputs, mask=mask, num_landmarks=64, **KMEANS)
                return (jnp.sin(output) * weights).sum()

            difference = float(loss(1e-6) - loss(-1e-6)) / 2e-6
            assert float(jax.grad(loss)(0.0)) == pytest.approx(difference, rel=1e-5)


def test_half_precision_is_close_to_single(rngs):
    tokens = normal(next(rngs), (3, B, L, H, D)).astype(jnp.bfloat16)
    output = attend(*tokens)
    expected = attend(*tokens.astype(jnp.float32))
    assert output.dtype == jnp.bfloat16
    assert_close(output, expected, HALF)


def test_other_layouts_are_rejected(rngs):
    tokens = jnp.ones((3, 1, 12, 1, 2))
    with pytest.raises(
        ValueError, match="landmark_selection='kmeans' needs landmark_layout='real'"
    ):
        nystrom_attention(*tokens, num_landmarks=3, landmark_layout="hf", **KMEANS)
