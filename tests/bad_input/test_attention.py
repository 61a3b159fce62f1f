"""Attention is finite for extreme values of real tokens, whatever padding contains."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import (
    nystrom_attention,
    nystrom_attention_rows,
    nystrom_factors,
    sharded_nystrom_attention,
    softmax_attention,
)
from nystromformer_jax.training import MeshConfig, make_mesh

BATCH, HEADS, DIM, WIDTH = 4, 2, 5, 3
# Queries, keys and landmarks; with equal lengths, queries and keys have one mask.
CASES = {
    "one token": (1, 1, 1),
    "fewer tokens than landmarks": (2, 2, 7),
    "one landmark": (13, 13, 1),
    "five landmarks": (17, 17, 5),
    "a landmark for each": (11, 11, 11),
    "more keys": (11, 19, 5),
    "few queries": (3, 19, 5),
}
# Scales of ordinary and of extreme numbers. The largest float16 is 65,504.
SCALES = {"ordinary": 1.0, "tiny": 1e-20, "denormal": 1e-40, "zero": 0.0, "huge": 1e9}
HALF_SCALES = {"ordinary": 1.0, "tiny": 1e-5, "denormal": 1e-7, "zero": 0.0, "huge": 3e2}
FILLERS = (np.nan, np.inf, -np.inf, "largest")  # of padding


def sharded(*inputs, **options):
    mesh = make_mesh(MeshConfig(sequence=2), jax.devices()[:2])
    return sharded_nystrom_attention(*inputs, mesh=mesh, **options)


ATTENTIONS = {
    "softmax": lambda *inputs, num_landmarks, conv_kernel, **masks: softmax_attention(
        *inputs, **masks
    ),
    "nystrom": nystrom_attention,
    "normalized": functools.partial(nystrom_attention, normalize_rows=True),
    "sharded": sharded,
}


def mask_of(length, random):
    """All tokens are real, a prefix, some or none."""
    some = random.random(length) < 0.5
    rows = [np.arange(length) >= 0, np.arange(length) < length // 2, some, some & ~some]
    return jax.device_put(np.stack(rows))


def values(random, kind, length, dtype):
    """Numbers of one kind. The first example is constant, and the second has a spike."""
    x = random.normal(size=(BATCH, length, HEADS, DIM))
    x[0] = x[0, 0, 0, 0]
    x[1, length // 4] *= 30
    scales = HALF_SCALES if dtype == jnp.float16 else SCALES
    return jnp.asarray(scales[kind] * x, dtype)


def filled(inputs, masks, filler):
    """Query, key and value with `filler` in padding."""
    masks = masks["query_mask"], masks["mask"], masks["mask"]
    value = jnp.finfo(inputs[0].dtype).max if filler == "largest" else filler
    value = jnp.asarray(value, inputs[0].dtype)
    return [jnp.where(m[..., None, None], x, value) for x, m in zip(inputs, masks, strict=True)]


def finite(tree):
    return all(np.isfinite(np.asarray(leaf, np.float64)).all() for leaf in jax.tree.leaves(tree))


def assert_same_bits(one, other, where):
    one, other = (np.asarray(x, np.float64)[np.asarray(where)] for x in (one, other))
    np.testing.assert_array_equal(one, other)


FAST = [
    f"{name}-{case}"
    for name in ("softmax", "nystrom")
    for case in ("five landmarks-float32", "few queries-bfloat16")
]


@pytest.mark.slow_except(*FAST)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_output_and_gradients_are_finite_and_ignore_padding_and_batch_mates(name, case, dtype):
    queries, keys, num_landmarks = CASES[case]
    random, dtype = np.random.default_rng(0), jnp.dtype(dtype)
    mask = mask_of(keys, random)
    masks = {"mask": mask, "query_mask": mask if queries == keys else mask_of(queries, random)}
    kernel = jnp.asarray(random.normal(size=(HEADS, WIDTH)), dtype) if queries == keys else None
    attend = functools.partial(
        ATTENTIONS[name], num_landmarks=num_landmarks, conv_kernel=kernel, **masks
    )
    run = jax.jit(attend)
    first = jax.device_put(np.arange(BATCH)[:, None] == 0)
    others = values(random, "ordinary", keys, dtype)
    for number, (kind, other) in enumerate(itertools.product(SCALES, SCALES)):
        inputs = [
            values(random, one, length, dtype)
            for one, length in ((kind, queries), (other, keys), (other, keys))
        ]
        expected = run(*filled(inputs, masks, 0))
        output = run(*filled(inputs, masks, FILLERS[number % len(FILLERS)]))
        assert (output.shape, output.dtype) == (inputs[0].shape, dtype)
        assert finite(output), (kind, other)
        assert_same_bits(output, expected, masks["query_mask"])
        mixed = [
            jnp.where(first[..., None, None], x, others[:, : x.shape[1]])
            for x in filled(inputs, masks, 0)
        ]
        assert_same_bits(run(*mixed), expected, first & masks["query_mask"])

    cotangent = values(random, "ordinary", queries, dtype)
    cotangent = jnp.where(masks["query_mask"][..., None, None], cotangent, 0)
    total = lambda inputs: (attend(*inputs) * cotangent).sum()
    gradient_of = jax.jit(jax.grad(total))
    inputs = [values(random, "ordinary", length, dtype) for length in (queries, keys, keys)]
    for filler in FILLERS:
        gradients = gradient_of(filled(inputs, masks, filler))
        assert finite(gradients)
        for gradient, own in zip(gradients, ("query_mask", "mask", "mask"), strict=True):
            assert not np.asarray(gradient, np.float64)[~np.asarray(masks[own])].any()


def test_factors_and_rows_are_finite_and_zero_at_padding():
    queries, keys, num_landmarks = CASES["more keys"]
    random = np.random.default_rng(0)
    masks = {"mask": mask_of(keys, random), "query_mask": mask_of(queries, random)}
    rows = jnp.asarray(random.integers(0, queries, (BATCH, 2)))
    options = {"num_landmarks": num_landmarks, **masks}
    factors = jax.jit(functools.partial(nystrom_factors, **options))
    map_rows = jax.jit(functools.partial(nystrom_attention_rows, **options))
    for kind, filler in itertools.product(SCALES, FILLERS):
        inputs = [values(random, kind, length, jnp.float32) for length in (queries, keys, keys)]
        query, key, _ = filled(inputs, masks, filler)
        assert finite(factors(query, key))
        chosen = map_rows(query, key, rows)
        assert finite(chosen)
        assert not np.where(np.asarray(masks["mask"])[:, None, None], 0, np.asarray(chosen)).any()
