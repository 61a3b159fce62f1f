"""Landmarks by content: means of clusters of similar queries or keys, in time linear in the length."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.checks import accum_dtype
from nystromformer_jax.attention.landmarks import LandmarkMeans, first_ranks
from nystromformer_jax.attention.stages import weighted_values
from nystromformer_jax.typing import Array, Float, Int

SAMPLES_PER_LANDMARK = 8
# Within a cluster; clusters with a larger variance are not used. Chosen on 168 inputs of rank 2 to 64
# (docs/when.md): the error was at most 1.2 % above that of segments, and with a limit of 2 up to 16 %.
MAX_LOGIT_VARIANCE = 1.5

Psum = Callable[[Array], Array]  # sums an array over the devices that share the length


def cluster_landmarks(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    q_segments: LandmarkMeans,
    k_segments: LandmarkMeans,
    psum: Psum,
    num_own: int = 0,
) -> tuple[LandmarkMeans, LandmarkMeans]:
    """Returns the landmarks of queries and keys for `landmark_selection="kmeans"`.

    One Lloyd step per head assigns each token to the nearest of M initial centers. Each landmark is the
    mean of the tokens assigned to it, or its initial center if it has none. The initial centers are the
    segment means or M sampled tokens that are far apart, whichever are closer to a sample of 8 M tokens. The
    assignment and the choice of the tokens have no gradient.

    The clusters of a head are used only if the landmarks represent their tokens well. Otherwise the
    approximation can be worse than the mean value, so the head keeps its segment means. The criterion is
    the variance of a logit within a cluster, which must be at most 1.5. For clusters of keys it is
    tr(Σ_within Σ_query) / D, where Σ_within is the covariance of keys around the nearest landmark and Σ_query
    that of all queries. For clusters of queries it is the same with the roles exchanged. The covariances
    are those of a sample of 8 M tokens.

    If the segments have `ranks`, examples with at most M real tokens also keep their segment means, which are
    the tokens themselves.

    Args:
      query: Queries, zero at padding.
      key: Keys, zero at padding.
      q_segments: Segment means of the queries.
      k_segments: Segment means of the keys.
      psum: Sums an array over the devices that share the length.
      num_own: Number of first tokens that keep landmarks of their own; the others are clustered. If it is
        not 0, the segments need `ranks`.

    Source: Lloyd 1982, "Least squares quantization in PCM"; tokens far apart as in Gonzalez 1985,
    "Clustering to minimize the maximum intercluster distance". The criterion is ours.
    """
    if num_own:
        q_others, k_others = q_segments.without_first(num_own), k_segments.without_first(num_own)
        q_others, k_others = cluster_landmarks(query, key, q_others, k_others, psum)
        return _add_to_first(q_segments, q_others), _add_to_first(k_segments, k_others)
    queries = _cluster(query, q_segments, psum)
    keys = _cluster(key, k_segments, psum)
    return (
        _choose(queries, q_segments, keys.covariance),
        _choose(keys, k_segments, queries.covariance),
    )


def _add_to_first(segments: LandmarkMeans, others: LandmarkMeans) -> LandmarkMeans:
    """Returns the landmarks of `segments`, with `others` as the last of them."""
    num_own = segments.means.shape[1] - others.means.shape[1]
    means = jnp.concatenate([segments.means[:, :num_own], others.means], axis=1)
    return segments._replace(means=means)


class _Clusters(NamedTuple):
    """Clusters of tokens, and covariances of a sample of the tokens, in at least float32."""

    means: Float[Array, "B M H D"]
    covariance: Float[Array, "B H D D"]  # around the mean of the sample
    covariance_within: Float[Array, "B H D D"]  # around the nearest landmark


def _cluster(x: Float[Array, "B L H D"], segments: LandmarkMeans, psum: Psum) -> _Clusters:
    """Returns the clusters after one Lloyd step."""
    ranks, dtype = segments.ranks, accum_dtype(x.dtype)
    sample = _sample(x, SAMPLES_PER_LANDMARK * segments.means.shape[1], segments, psum)
    initial = _initial_centers(sample, segments)
    assigned = _nearest(jax.lax.stop_gradient(_closeness(x, initial)))
    if ranks is not None:
        assigned = jnp.where(ranks.mask[:, None, :], assigned, -1)
    index = jnp.arange(initial.shape[1])[None, None, :, None]
    members = (assigned[:, :, None] == index).astype(x.dtype)  # [B H M L]
    sizes = psum(members.sum(axis=3, dtype=dtype)).mT[..., None]
    sums = psum(weighted_values(members, x))
    means = jnp.where(sizes > 0, sums / jnp.maximum(sizes, 1), initial)
    nearest = _nearest(_closeness(sample, means)).mT[..., None]  # [B R H 1]
    landmarks = jnp.take_along_axis(means, nearest, axis=1)
    covariance, covariance_within = (
        _covariance(jax.lax.stop_gradient(sample - center))
        for center in (sample.mean(axis=1, keepdims=True), landmarks)
    )
    return _Clusters(means, covariance, covariance_within)


def _covariance(x: Float[Array, "B R H D"]) -> Float[Array, "B H D D"]:
    return jnp.einsum("BRHD,BRHE->BHDE", x, x) / x.shape[1]


def _nearest(closeness: Float[Array, "B H M L"]) -> Int[Array, "B H L"]:
    """Returns the index of the nearest center of each token; a tie selects the first."""
    num_landmarks = closeness.shape[2]
    index = jnp.arange(num_landmarks)[None, None, :, None]
    is_nearest = closeness == closeness.max(axis=2, keepdims=True)
    # Takes half the time of `argmax` on a CPU.
    return jnp.where(is_nearest, index, num_landmarks).min(axis=2)


def _closeness(
    x: Float[Array, "B L H D"], centers: Float[Array, "B M H D"]
) -> Float[Array, "B H M L"]:
    """Returns (‖x‖² − ‖x − center‖²) / 2, which is largest for the nearest center."""
    products = jnp.einsum(
        "BMHD,BLHD->BHML", centers.astype(x.dtype), x, preferred_element_type=centers.dtype
    )
    return products - jnp.square(centers).sum(axis=3).mT[..., None] / 2


def _initial_centers(
    tokens: Float[Array, "B R H D"], segments: LandmarkMeans
) -> Float[Array, "B M H D"]:
    """Returns the segment means or tokens that are far apart, whichever are closer to sampled `tokens`."""
    num_landmarks = segments.means.shape[1]
    chosen = _far_apart(jax.lax.stop_gradient(tokens), num_landmarks)
    apart = jnp.take_along_axis(tokens, chosen[..., None], axis=1)
    means = segments.means.astype(tokens.dtype)
    means_fit, apart_fit = (
        jax.lax.stop_gradient(_closeness(tokens, centers).max(axis=2).mean(axis=2))
        for centers in (means, apart)
    )
    return jnp.where((means_fit >= apart_fit)[:, None, :, None], means, apart)


def _sample(
    x: Float[Array, "B L H D"], size: int, segments: LandmarkMeans, psum: Psum
) -> Float[Array, "B R H D"]:
    """Returns `size` evenly spaced real tokens, in at least float32; some repeat if there are fewer."""
    dtype, ranks = accum_dtype(x.dtype), segments.ranks
    if ranks is None:
        return x[:, np.arange(size) * x.shape[1] // size].astype(dtype)
    # floor(i · count / size) for i = 0 … size − 1, as count − ceil((size − i) · count / size)
    wanted = ranks.counts[:, None] - first_ranks(ranks.counts, size)[:, :0:-1]
    position = (ranks.rank[:, None, :] < wanted[:, :, None]).sum(axis=2)
    # If devices share the length, one device has the token, and the others add zeros.
    position = jnp.minimum(
        position, x.shape[1] - 1
    )  # after the last token if another device has it
    here = jnp.take_along_axis(jnp.where(ranks.mask, ranks.rank, -1), position, axis=1) == wanted
    tokens = jnp.take_along_axis(x.astype(dtype), position[:, :, None, None], axis=1)
    return psum(jnp.where(here[:, :, None, None], tokens, 0))


def _far_apart(tokens: Float[Array, "B R H D"], num_landmarks: int) -> Int[Array, "B M H"]:
    """Returns the indices of M tokens per head: farthest from the mean, then from all earlier ones."""

    def next_token(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        center, distance = carry  # [B 1 H D] and [B R H]
        distance = jnp.minimum(distance, jnp.square(tokens - center).sum(axis=3))
        farthest = distance.argmax(axis=1, keepdims=True)
        center = jnp.take_along_axis(tokens, farthest[..., None], axis=1)
        return (center, distance), farthest[:, 0]

    carry = tokens.mean(axis=1, keepdims=True), jnp.full_like(tokens[..., 0], jnp.inf)
    _, chosen = jax.lax.scan(next_token, carry, length=num_landmarks)
    return chosen.swapaxes(0, 1)


def _choose(
    clusters: _Clusters, segments: LandmarkMeans, other_covariance: Float[Array, "B H D D"]
) -> LandmarkMeans:
    """Returns the cluster means where they represent the tokens well, else the segment means.

    `other_covariance` is that of the keys for clusters of queries, and that of the queries for clusters of
    keys. Examples with at most M real tokens keep their segment means if the segments have `ranks`.
    """
    trace = (clusters.covariance_within * other_covariance).sum(axis=(2, 3))  # both are symmetric
    is_chosen = trace <= MAX_LOGIT_VARIANCE * clusters.means.shape[3]
    is_chosen = is_chosen[:, None, :, None]
    if segments.ranks is not None:
        is_chosen &= (segments.ranks.counts > segments.means.shape[1])[:, None, None, None]
    means = clusters.means.astype(segments.means.dtype)
    return segments._replace(means=jnp.where(is_chosen, means, segments.means))
