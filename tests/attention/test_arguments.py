"""Shapes that the functions of query, key and value accept, and the errors for those that they reject."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nystromformer_jax import (
    approximation_error,
    depthwise_convolution,
    iterative_pinv,
    nystrom_attention,
    nystrom_attention_rows,
    nystrom_factors,
    segment_means,
    sharded_nystrom_attention,
    softmax_attention,
)
from nystromformer_jax.attention import stages
from nystromformer_jax.attention.dropout import Dropout
from nystromformer_jax.attention.pinv import ridge_pinv
from tests.helpers import SAME_ARITHMETIC, assert_close, normal, random_inputs

FUNCTIONS = {
    "nystrom": jax.jit(functools.partial(nystrom_attention, num_landmarks=3)),
    "softmax": jax.jit(softmax_attention),
    "error": jax.jit(functools.partial(approximation_error, num_landmarks=3)),
    "factors": lambda query, key, _, **masks: nystrom_factors(query, key, num_landmarks=3, **masks),
    "rows": lambda query, key, _, **masks: nystrom_attention_rows(
        query, key, jnp.full((*query.shape[:-3], 1), 10), num_landmarks=3, **masks
    ),
}


@pytest.mark.slow_except("batch0-3-nystrom", "batch2-1-softmax", "batch1-2-rows")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("batch", [(), (2, 3), (2, 1, 3)])
def test_leading_axes_are_one_batch_and_grouped_heads_are_repeated(rngs, name, batch, groups):
    query = normal(next(rngs), (*batch, 11, 6, 5))
    key, value = (normal(next(rngs), (*batch, 17, groups, 5)) for _ in range(2))
    masks = [jax.random.bernoulli(next(rngs), 0.7, (*batch, length)) for length in (17, 11)]
    outputs = FUNCTIONS[name](query, key, value, mask=masks[0], query_mask=masks[1])
    repeated = [jnp.repeat(x, 6 // groups, axis=-2) for x in (key, value)]
    flat = [x.reshape(-1, *x.shape[len(batch) :]) for x in (query, *repeated, *masks)]
    expected = FUNCTIONS[name](*flat[:3], mask=flat[3], query_mask=flat[4])
    for one, other in zip(jax.tree.leaves(outputs), jax.tree.leaves(expected), strict=True):
        assert one.shape == (*batch, *other.shape[1:])
        assert_close(one.reshape(other.shape), other, SAME_ARITHMETIC)


def test_stages_convert_numpy_arrays(rngs, no_annotations):
    """As all attentions do, see tests/cores/test_contract.py."""
    tokens = random_inputs(rngs, 2, 23, 3, 5)
    float64 = [np.asarray(x, np.float64) for x in tokens]  # float32 without x64, and no warning
    for function in (
        lambda query, *kv: stages.collect(query, *kv, mask=None)[0],
        functools.partial(stages.distribute, landmark_mask=None),
    ):
        assert_close(function(*float64), function(*tokens), SAME_ARITHMETIC)


def ones(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


def drop(rate):
    return Dropout(rate).apply({}, X, deterministic=True)


X = ones(2, 5, 3, 4)
QKV = {"query": X, "key": X, "value": X}
MESH = jax.make_mesh((2,), ("sequence",), devices=jax.devices()[:2])
VALID = {
    nystrom_attention: QKV | {"num_landmarks": 2},
    softmax_attention: QKV,
    sharded_nystrom_attention: QKV | {"num_landmarks": 2, "mesh": MESH},
    approximation_error: QKV | {"num_landmarks": 2},
    segment_means: {"x": X, "num_landmarks": 2},
    iterative_pinv: {"kernel": jnp.eye(3)},
    ridge_pinv: {"kernel": jnp.eye(3)},
    depthwise_convolution: {"value": X, "kernel": ones(3, 3)},
}
ERRORS = [
    # Shapes that do not agree.
    (softmax_attention, {"query": ones(2, 5, 3)}, "leading axes"),
    (nystrom_attention, {"query": ones(2, 0, 3, 4)}, "non-empty"),
    (nystrom_attention, dict.fromkeys(QKV, ones(5, 4)), "head_dim"),
    (nystrom_attention, {"key": ones(2, 6, 3, 4)}, "same shape"),
    (nystrom_attention, {"query": ones(2, 5, 3, 7)}, "head_dim"),
    (nystrom_attention, {"query": ones(2, 5, 4, 4)}, "multiple"),
    (iterative_pinv, {"kernel": ones(3)}, "matrices"),
    # Masks of queries and keys.
    (nystrom_attention, {"mask": ones(2, 1, 5, 5, dtype=bool)}, "causal"),
    (nystrom_attention, {"mask": ones(2, 6, dtype=bool)}, r"\(2, 5\)"),
    (nystrom_attention, {"mask": ones(2, 5, dtype=int)}, "mask != 0"),
    (nystrom_attention, {"mask": [[True]]}, r"asarray\(mask\)"),
    (nystrom_attention, {"query": X[:, :4], "mask": ones(2, 5, dtype=bool)}, "query_mask"),
    (
        nystrom_attention,
        dict.fromkeys(QKV, X[None]) | {"mask": ones(2, 5, dtype=bool)},
        r"\(1, 2, 5\)",
    ),
    (segment_means, {"mask": ones(2, 7, dtype=bool)}, "mask"),
    # Types.
    (nystrom_attention, dict.fromkeys(QKV, X.astype(int)), "int32"),
    (nystrom_attention, {"key": X.astype(jnp.float8_e4m3fn)}, r"key\.astype"),
    # Options.
    (nystrom_attention, {"landmark_layout": "mlpn"}, "'mlpen'"),
    (nystrom_attention, {"landmark_layout": "mlpen", "num_landmarks": 3}, "multiple of M = 3"),
    (nystrom_attention, {"landmark_layout": "hf", "landmark_selection": "kmeans"}, "'real'"),
    (nystrom_attention, {"landmark_layout": "hf", "num_own_landmarks": 1}, "'real'"),
    *((nystrom_attention, {"num_own_landmarks": x}, "integer") for x in (-1, 2, True)),
    (segment_means, {"num_own_landmarks": 2}, "integer"),
    (nystrom_attention, {"implementation": "cuda"}, "'xla'"),
    (nystrom_attention, {"pinv": "cholesky"}, "'ridge'"),
    (nystrom_attention, {"pinv": "ridge", "pinv_start": "batch_max"}, "pinv_start"),
    (nystrom_attention, {"pinv_start": "original"}, "'batch_max'"),
    (nystrom_attention, {"pinv_iters": 101}, "100"),
    (ridge_pinv, {"num_iters": 11}, "10"),
    (segment_means, {"num_landmarks": 3, "layout": "mlpen"}, "multiple of M = 3"),
    (sharded_nystrom_attention, {"axis": "length"}, "'sequence'"),
    (approximation_error, {"conv_kernel": ones(3, 3)}, "conv_kernel"),
    (drop, {"rate": 1.0}, "below 1"),
    (drop, {"rate": -0.1}, "at least 0"),
    # Kernels of the convolution.
    (nystrom_attention, {"conv_kernel": ones(3, 2)}, "W odd"),
    (nystrom_attention, {"query": X[:, :4], "conv_kernel": ones(3, 3)}, "equal lengths"),
    *(
        (depthwise_convolution, {"kernel": ones(*shape)}, "W odd")
        for shape in ((2, 3), (), (3, 2, 3))
    ),
]


@pytest.mark.parametrize(
    ("function", "changes", "word"),
    ERRORS,
    ids=[f"{function.__name__} {' '.join(changes)} {word}" for function, changes, word in ERRORS],
)
def test_errors_name_what_is_wrong_or_valid(function, changes, word, no_annotations):
    """Single arguments of a wrong rank or size are in tests/bad_input."""
    with pytest.raises(ValueError, match=word):
        function(**VALID.get(function, {}) | changes)
