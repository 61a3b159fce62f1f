"""Reformer's attention against dense attention over the pairs that share a chunk."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax.cores.reformer import draw_rotations, hash_buckets, lsh_attention
from tests.helpers import (
    OTHER_FRAMEWORK,
    SAME_ARITHMETIC,
    assert_close,
    assert_same_attention,
    cost,
    normal,
    random_inputs,
)

BATCH, LENGTH, HEADS, DIM = 3, 43, 2, 5
jit_lsh = jax.jit(lsh_attention, static_argnames=("num_hashes", "chunk_len", "num_buckets"))
# (num_hashes, chunk_len, num_buckets); the chunks of one token, buckets of two rotations, one bucket
SIZES = [(3, 7, 4), (1, 5, 16), (2, 1, 2), (2, 11, 256), (1, 13, 1), (3, 43, 1), (1, 64, 1)]


def query_and_value(rngs):
    query, _, value = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM)
    return query, value


def ragged_mask():
    """Padding in front, in the middle and behind; 43, 26 and 18 real tokens."""
    position = np.arange(LENGTH)
    return np.stack([position >= 0, (position >= 3) & (position % 3 > 0), position < 18])


def count_shared_chunks(query, rotations, chunk_len, mask):
    """Counts the rounds in which each pair of tokens shares a chunk, [B H L L], token by token."""
    counts = np.zeros((BATCH, HEADS, LENGTH, LENGTH))
    for b, h in np.ndindex(BATCH, HEADS):
        tokens = np.flatnonzero(mask[b])
        for hash_round in range(len(rotations[0])) if rotations else [0]:

            def bucket(token, b=b, h=h, hash_round=hash_round):
                found = []
                for rotation in rotations:
                    rotated = query[b, token, h] @ rotation[hash_round]
                    found.append(np.argmax(np.concatenate([rotated, -rotated])))
                return found

            ranked = sorted(tokens, key=lambda token: (bucket(token), token))
            chunk = {token: rank // chunk_len for rank, token in enumerate(ranked)}
            for one in tokens:
                for other in tokens:
                    counts[b, h, one, other] += chunk[one] - chunk[other] in (0, 1)
    return counts


def dense(query, value, counts):
    """Attention with unit-length keys, each pair weighted by its count, and no token attending to itself."""
    others = counts * (1 - np.eye(LENGTH))
    alone = others.sum(-1, keepdims=True) == 0
    counts = np.where(alone, np.eye(LENGTH), others)
    key = query / jnp.linalg.norm(query, axis=-1, keepdims=True)
    bias = np.log(np.maximum(counts, 1e-30))
    return jax.nn.dot_product_attention(query, key, value, bias=bias, scale=1.0)


@pytest.mark.slow_except("3-43-1", "3-7-4")
@pytest.mark.parametrize(("num_hashes", "chunk_len", "num_buckets"), SIZES)
def test_pairs_are_weighted_by_the_rounds_in_which_they_share_a_chunk(
    rngs, num_hashes, chunk_len, num_buckets
):
    """With one bucket in one chunk, these are all pairs: softmax attention."""
    query, value = query_and_value(rngs)
    mask, rng = ragged_mask(), next(rngs)
    rotations = [np.asarray(r) for r in draw_rotations(rng, num_hashes, DIM, num_buckets)]
    counts = count_shared_chunks(np.asarray(query), rotations, chunk_len, mask)
    pairs = mask[:, None, :, None] & mask[:, None, None, :]
    assert ((counts == 0) & pairs).any() == (chunk_len < LENGTH)  # it approximates
    sizes = {"num_hashes": num_hashes, "chunk_len": chunk_len, "num_buckets": num_buckets}
    attend = functools.partial(lsh_attention, rng=rng, mask=jnp.asarray(mask), **sizes)
    whole = functools.partial(dense, counts=counts)
    # Keys are normalized, some from small vectors.
    assert_same_attention(attend, whole, (query, value), mask, gradient=OTHER_FRAMEWORK)


def test_default_is_two_buckets_per_chunk(rngs):
    query, value = query_and_value(rngs)
    rng = next(rngs)
    for chunk_len, num_buckets in ((5, 16), (43, 2), (64, 2)):
        given = jit_lsh(query, value, rng, chunk_len=chunk_len, num_buckets=num_buckets)
        followed = jit_lsh(query, value, rng, chunk_len=chunk_len)
        assert_close(followed, given, SAME_ARITHMETIC)


def test_a_lone_token_attends_to_itself(rngs):
    query, value = query_and_value(rngs)
    mask = jnp.zeros((BATCH, LENGTH), bool).at[:, 17].set(True)
    output = jit_lsh(query, value, next(rngs), chunk_len=7, num_buckets=4, mask=mask)
    assert_close(output, value, SAME_ARITHMETIC, where=mask)


def test_gradients_of_zero_and_huge_vectors_are_finite(rngs):
    query, value = query_and_value(rngs)
    rng = next(rngs)
    attend = lambda *x: jit_lsh(*x, rng, chunk_len=7, num_buckets=4)
    for extreme in (query.at[:, 5:31].set(0), 30 * query, 1e15 * query):
        output, pull_back = jax.vjp(attend, extreme, value)
        assert jnp.isfinite(output).all()
        assert all(jnp.isfinite(gradient).all() for gradient in pull_back(output))


@pytest.mark.parametrize("num_buckets", [8, 128])
def test_similar_vectors_share_a_bucket_more_often(rngs, num_buckets):
    x = normal(next(rngs), (1, 1, 499, 11))
    rotations = draw_rotations(next(rngs), 13, 11, num_buckets)
    buckets = lambda x: hash_buckets(x, rotations, 13)

    def shared(noise):
        return float((buckets(x) == buckets(x + noise * normal(next(rngs), x.shape))).mean())

    assert shared(0.1) > 0.6
    assert shared(0.1) > 1.2 * shared(0.5) > 2 * shared(30.0)
    assert 0.3 < shared(1000.0) * num_buckets < 3  # chance
    assert (buckets(x) == buckets(7 * x)).all()  # only the direction matters
    assert (buckets(x)[0] != buckets(x)[1]).any()  # rounds have independent hashes
    assert set(np.unique(buckets(x))) == set(range(num_buckets))


def test_cost_is_linear_in_the_length(rngs):
    attend = functools.partial(lsh_attention, rng=next(rngs), chunk_len=64)
    short, long = (
        cost(attend, *[jax.ShapeDtypeStruct((1, length, 1, 32), jnp.float32)] * 2)
        for length in (4096, 8192)
    )
    assert (long <= 2.1 * short).all()
