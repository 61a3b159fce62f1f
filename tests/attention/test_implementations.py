"""The contract of every implementation of Nyström attention: it equals plain jnp, forward and gradient.

The masks have rows with padding at the ends, with holes, with few tokens and with none. Plain jnp itself is
compared with the paper's formulas and with finite differences in test_functions.py. Here it ignores padding.
"""

import contextlib
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from nystromformer_jax import nystrom_attention, nystrom_factors, sharded_nystrom_attention
from nystromformer_jax.attention import chunks
from nystromformer_jax.attention.arguments import Inputs
from nystromformer_jax.attention.checks import zero_padding
from nystromformer_jax.attention.functions import CUDNN, add_convolution, nystrom
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
    "segments of whole chunks and devices": {"length": 320, "width": 5},
    "devices without a token": {"length": 21, "masks": 1, "width": 5},
    "no more positions than landmarks": {"masks": 1, "width": 5, "num_landmarks": 307},
    "one example": {"batch": 1, "masks": 1},
    "mask": {"masks": 1, "width": 35},
    "two masks": {"masks": 2, "width": 5},
    "two lengths": {"masks": 2, "key_length": 212},
    "convolution": {"width": 33},
    "convolution per channel": {"masks": 1, "width": 5, "per_channel": True},
    "convolution of padding": {"masks": 2, "width": 5, "mask_conv": False},
    "ridge": {"masks": 1, "pinv": "ridge"},
    "batch_max": {"masks": 1, "pinv_start": "batch_max"},
    "k-means": {"masks": 1, "landmark_selection": "kmeans"},
    "mlpen": {"masks": 1, "landmark_layout": "mlpen", "num_landmarks": 2},
    "hf": {"masks": 1, "landmark_layout": "hf", "num_landmarks": 2},
    "normalized rows": {"masks": 2, "normalize_rows": True},
    "bfloat16": {"masks": 1, "width": 33, "dtype": jnp.bfloat16},
    "float16": {"masks": 1, "width": 5, "dtype": jnp.float16},
}
READS_PADDING = {"convolution of padding", "hf"}
# These fall back to jnp, with a warning; see tests/kernels.
UNSUPPORTED = {
    "pallas_tpu": {
        "convolution of padding",
        "batch_max",
        "k-means",
        "mlpen",
        "hf",
        "normalized rows",
        "float16",
        "no more positions than landmarks",
    },
    "cudnn": {"normalized rows", "float16"},  # XLA on a CPU lacks a product of float16
    "factors": {"convolution of padding"},  # without the convolution
    "xla": set(),
    "chunks": set(),
    "split": set(),
    "split, explicit axes": {"one example"},  # two devices share the batch
}
FAST = {
    ("pallas_tpu", "mask"),
    ("cudnn", "two masks"),
    ("factors", "two masks"),
    ("factors", "normalized rows"),
    ("xla", "bfloat16"),
    ("chunks", "mask"),
    ("chunks", "one example"),
    ("split", "devices without a token"),
    ("split", "two lengths"),
    ("split, explicit axes", "mask"),
}


def of_cudnn(query, key, value, *, mask, query_mask, conv_kernel, **options):
    """The form for cuDNN, with XLA in its place."""
    inputs = Inputs.create(query, key, value, mask, query_mask, conv_kernel)
    return nystrom(inputs, NystromOptions(**options), CUDNN)


def of_factors(query, key, value, *, mask, query_mask, conv_kernel, **options):
    """The product of the factors and the value."""
    kernel_1, inverse, kernel_3 = nystrom_factors(
        query, key, mask=mask, query_mask=query_mask, **options
    )
    value = zero_padding(value, mask)
    output = (kernel_1 @ (inverse @ (kernel_3 @ value.swapaxes(1, 2)))).swapaxes(1, 2)
    return add_convolution(output.astype(query.dtype), value, conv_kernel)


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
    batch, length = given.pop("batch", BATCH), given.pop("length", LENGTH)
    key_length, masks = given.pop("key_length", length), given.pop("masks", 0)
    tokens = random_inputs(rngs, batch, length, HEADS, DIM, key_length=key_length, dtype=dtype)
    kernel = normal(next(rngs), (*groups, width)) if width else None
    mask = masks_of_all_kinds(key_length, M, batch) if masks else None
    query_mask = masks_of_all_kinds(length, M, batch)[::-1] if masks == 2 else None
    real = (mask if masks == 1 else query_mask) if masks else jnp.ones((batch, length), bool)
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
    elif name == "factors":
        attention = of_factors
    elif name == "xla":
        attention = functools.partial(nystrom_attention, implementation=name)
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
        if (
            kind == AxisType.Explicit
        ):  # else the arguments are not moved to the mesh before the call
            tokens, options["mask"], options["query_mask"], cotangent = jax.tree.map(
                place, (tokens, options["mask"], options["query_mask"], cotangent)
            )
        attention = functools.partial(sharded_nystrom_attention, mesh=mesh)
        context = jax.set_mesh(mesh)
    with context:
        actual = output_and_gradients(attention, tokens, kernel, cotangent, **options)
    half = jnp.dtype(dtype).itemsize == 2
    assert actual[0].dtype == dtype
    assert {gradient.dtype for gradient in actual[1][0]} == {jnp.dtype(dtype)}
    assert jnp.isfinite(actual[0].astype(jnp.float32)).all()
    assert_close(actual[0], expected[0], HALF if half else REFERENCE, where=real)
    assert_close(actual[1], expected[1], HALF_GRADIENT if half else REFERENCE)
