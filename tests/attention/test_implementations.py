"""The contract of every implementation of Nyström attention: it equals plain jnp, forward and gradient.

Plain jnp itself is compared with the paper's formulas and with finite differences, in test_functions.py.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from nystromformer_jax import nystrom_attention, sharded_nystrom_attention
from nystromformer_jax.attention import chunks
from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.functions import CUDNN, nystrom
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.kernels import cudnn
from nystromformer_jax.training import batch_sharding
from tests.helpers import (
    HALF,
    HALF_GRADIENT,
    REFERENCE,
    assert_close,
    masks_of_all_kinds,
    normal,
    output_and_gradients,
    random_inputs,
)

# Devices, chunks and the kernels' blocks do not divide the length, and segments cross their borders.
BATCH, LENGTH, HEADS, DIM, M = 4, 302, 2, 32, 16

CASES = {
    "no mask": {},
    "mask": {"masks": 1, "width": 35},
    "two masks": {"masks": 2, "width": 5},
    "two lengths": {"masks": 2, "key_length": 212},
    "convolution": {"width": 33},
    "convolution per channel": {"masks": 1, "width": 5, "per_channel": True},
    "convolution of padding": {"masks": 2, "width": 5, "mask_conv": False},
    "ridge": {"masks": 1, "pinv": "ridge"},
    "batch_max": {"masks": 1, "pinv_start": "batch_max"},
    "k-means": {"masks": 1, "landmark_selection": "kmeans"},
    "own landmarks": {"masks": 2, "key_length": 212, "num_own_landmarks": 3},
    "own landmarks, k-means": {
        "masks": 1,
        "landmark_selection": "kmeans",
        "num_own_landmarks": 3,
    },
    "mlpen": {"masks": 1, "landmark_layout": "mlpen", "num_landmarks": 2},
    "hf": {"masks": 1, "landmark_layout": "hf", "num_landmarks": 2},
    "normalized rows": {"masks": 2, "normalize_rows": True},
    "bfloat16": {"masks": 1, "width": 33, "dtype": jnp.bfloat16},
}
READS_PADDING = {"convolution of padding", "hf"}
# These fall back to jnp, with a warning; see tests/kernels.
UNSUPPORTED = {
    "pallas_tpu": {
        "convolution of padding",
        "batch_max",
        "k-means",
        "own landmarks, k-means",
        "mlpen",
        "hf",
        "normalized rows",
    },
    "cudnn": {"normalized rows"},
    "chunks": set(),
    "split": set(),
    "split, explicit axes": set(),
}
FAST = {
    ("pallas_tpu", "mask"),
    ("pallas_tpu", "own landmarks"),
    ("cudnn", "two masks"),
    ("chunks", "mask"),
    ("chunks", "two lengths"),
    ("split", "ridge"),
    ("split", "two lengths"),
    ("split", "own landmarks"),
    ("split", "own landmarks, k-means"),
    ("split, explicit axes", "mask"),
}


def of_cudnn(query, key, value, *, mask, query_mask, conv_kernel, **options):
    """The form for cuDNN, with XLA in its place."""
    inputs = Inputs.create(query, key, value, mask, query_mask, conv_kernel)
    return nystrom(inputs, NystromOptions(**options), CUDNN)


def parameters():
    for name, unsupported in UNSUPPORTED.items():
        for case in CASES.keys() - unsupported:
            marks = () if (name, case) in FAST else pytest.mark.slow(minutes=0.2)
            yield pytest.param(name, case, id=f"{name}-{case}", marks=marks)


@pytest.mark.parametrize(("name", "case"), sorted(parameters(), key=lambda one: one.id))
def test_equals_plain_jnp_whatever_padding_contains(rngs, monkeypatch, request, name, case):
    given = {"num_landmarks": M, **CASES[case]}
    width, dtype = given.pop("width", 0), given.pop("dtype", jnp.float32)
    groups = (HEADS, DIM) if given.pop("per_channel", False) else (HEADS,)
    key_length, masks = given.pop("key_length", LENGTH), given.pop("masks", 0)
    tokens = random_inputs(rngs, BATCH, LENGTH, HEADS, DIM, key_length=key_length, dtype=dtype)
    kernel = normal(next(rngs), (*groups, width)) if width else None
    mask = masks_of_all_kinds(key_length, M, BATCH) if masks else None
    query_mask = masks_of_all_kinds(LENGTH, M, BATCH)[::-1] if masks == 2 else None
    real = (mask if masks == 1 else query_mask) if masks else jnp.ones((BATCH, LENGTH), bool)
    cotangent = jnp.where(real[..., None, None], normal(next(rngs), tokens[0].shape), 0)
    options = {"mask": mask, "query_mask": query_mask, **given}

    def with_padding(filler, dtype):
        filled = [
            x if own is None else jnp.where(own[..., None, None], x, filler)
            for x, own in zip(tokens, (real, mask, mask), strict=True)
        ]
        return [x.astype(dtype) for x in (tokens if case in READS_PADDING else filled)]

    expected = output_and_gradients(
        functools.partial(nystrom_attention, implementation="xla"),
        with_padding(0.0, jnp.float32),
        kernel,
        cotangent,
        **options,
    )
    tokens = with_padding(jnp.nan, dtype)
    context = contextlib.nullcontext()
    if name == "pallas_tpu":
        request.getfixturevalue("short_blocks")
        attention = functools.partial(nystrom_attention, implementation=name)
    elif name == "cudnn":
        monkeypatch.setattr(cudnn, "BACKEND", "xla")
        attention = of_cudnn
    elif name == "chunks":
        monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
        monkeypatch.setattr(chunks, "CHUNK", 64)
        jax.clear_caches()
        request.addfinalizer(jax.clear_caches)
        attention = functools.partial(nystrom_attention, implementation="xla")
    else:
        shape, kind = ((2, 4), AxisType.Explicit) if "explicit" in name else ((1, 8), AxisType.Auto)
        mesh = jax.make_mesh(shape, ("data", "sequence"), 2 * (kind,))
        place = lambda x: jax.device_put(x, batch_sharding(mesh, x.shape))
        tokens, options["mask"], options["query_mask"], cotangent = jax.tree.map(
            place, (tokens, options["mask"], options["query_mask"], cotangent)
        )
        attention = functools.partial(sharded_nystrom_attention, mesh=mesh)
        context = jax.set_mesh(mesh) if kind == AxisType.Explicit else context
    with context:
        actual = output_and_gradients(attention, tokens, kernel, cotangent, **options)
    half = dtype == jnp.bfloat16
    assert actual[0].dtype == dtype
    assert {gradient.dtype for gradient in actual[1][0]} == {jnp.dtype(dtype)}
    assert jnp.isfinite(actual[0].astype(jnp.float32)).all()
    assert_close(actual[0], expected[0], HALF if half else REFERENCE, where=real)
    assert_close(actual[1], expected[1], HALF_GRADIENT if half else REFERENCE)
