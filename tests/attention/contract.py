"""The contract of every implementation of Nyström attention: it equals plain jnp, forward and gradient.

The masks have rows with padding at the ends, with holes, with few tokens and with none. Plain jnp itself is
compared with the paper's formulas and with finite differences in test_functions.py. The tests of each
implementation are in the file named after its source.
"""

import contextlib
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nystromformer_jax import (
    depthwise_convolution,
    nystrom_attention,
    nystrom_factors,
    sharded_nystrom_attention,
    softmax_attention,
)
from nystromformer_jax.attention import chunks, pinv, stages
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
    forward_and_gradients,
    mask_of_lengths,
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
    "one example": {"batch": 1, "masks": 1, "length": 320},
    "mask": {"masks": 1, "width": 35},
    "two masks": {"masks": 2, "width": 5},
    "two lengths": {"length": 296, "key_length": 200},
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
    "float16": {"masks": 1, "width": 5, "dtype": jnp.float16},
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
        "float16",
        "no more positions than landmarks",
    },
    "cudnn": {"normalized rows", "float16"},  # XLA on a CPU lacks a product of float16
    "factors": {"convolution of padding"},  # without the convolution
    "split, explicit axes": {"one example"},  # two devices share the batch
    "batch, explicit axes": {"one example"},
}
UNSUPPORTED["pallas_tpu, devices"] = {*UNSUPPORTED["pallas_tpu"], "one example"}
MESHES = {
    "split": ({"data": 1, "sequence": 8}, AxisType.Auto),
    "split, explicit axes": ({"data": 2, "sequence": 4}, AxisType.Explicit),
    "batch, explicit axes": ({"data": 4}, AxisType.Explicit),
    "pallas_tpu, devices": ({"data": 4}, AxisType.Auto),
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


def attention_of(name, request):
    """The attention function of an implementation, prepared for this test."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    if name.startswith("pallas_tpu"):
        request.getfixturevalue("short_blocks")
        return functools.partial(nystrom_attention, implementation="pallas_tpu")
    if name == "cudnn":
        monkeypatch.setattr(cudnn, "BACKEND", "xla")
        return of_cudnn
    if name == "factors":
        return of_factors
    if name in ("chunks", "gpu"):
        jax.clear_caches()
        request.addfinalizer(jax.clear_caches)
    if name == "chunks":
        monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
        monkeypatch.setattr(chunks, "CHUNK", 64)
    if name == "gpu":  # the operations for GPUs, on a CPU
        for module in (stages, pinv):
            monkeypatch.setattr(module, "on_gpu", lambda: True)
    return functools.partial(nystrom_attention, implementation="xla")


def cases_of(name, *fast):
    """Parametrizes a test by `case`: all that the implementation supports; others than `fast` are slow."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, marks=() if case in fast else pytest.mark.slow(minutes=0.2))
            for case in CASES
            if case not in UNSUPPORTED.get(name, ())
        ],
    )


def assert_equals_plain_jnp(request, rngs, name, case):
    """Compares output and gradients; padding contains NaN, and zeros for plain jnp."""
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
    tokens, context = with_padding(jnp.nan, dtype), contextlib.nullcontext()
    attention = attention_of(name, request)
    if name in MESHES:
        axes, kind = MESHES[name]
        sizes = tuple(axes.values())
        devices = jax.devices()[: math.prod(sizes)]
        mesh = jax.make_mesh(sizes, tuple(axes), len(axes) * (kind,), devices=devices)
        context, sharding = jax.set_mesh(mesh), lambda shape: NamedSharding(mesh, P("data"))
        if "sequence" in axes:
            attention = functools.partial(sharded_nystrom_attention, mesh=mesh)
            sharding = functools.partial(batch_sharding, mesh)
        if axes["data"] > 1:  # otherwise the arguments are not moved to the mesh before the call
            place = lambda x: (
                jax.device_put(x, sharding(x.shape)) if isinstance(x, jax.Array) else x
            )
            tokens, options, cotangent = jax.tree.map(place, (tokens, options, cotangent))
    with context:
        actual = output_and_gradients(attention, tokens, kernel, cotangent, **options)
    half = jnp.dtype(dtype).itemsize == 2
    assert actual[0].dtype == dtype
    assert {gradient.dtype for gradient in actual[1][0]} == {jnp.dtype(dtype)}
    assert jnp.isfinite(actual[0].astype(jnp.float32)).all()
    assert_close(actual[0], expected[0], HALF if half else REFERENCE, where=real)
    assert_close(actual[1], expected[1], HALF_GRADIENT if half else REFERENCE)


def assert_independent_of_padding_and_batch(rngs, padding, options):
    """Output and gradients; few tokens get softmax attention, none get zeros.

    Padding between tokens has an effect through the convolution only.
    """
    total, at_ends = 89, padding == "ends"
    kernel = normal(next(rngs), (2, 9)) if at_ends else None
    places = 11 + np.arange(53)
    if not at_ends:
        places = np.sort(np.random.default_rng(0).permutation(total)[:53])
    attend = functools.partial(nystrom_attention, num_landmarks=7, conv_kernel=kernel, **options)
    inputs = random_inputs(rngs, 3, 53, 2, 5)
    weights = normal(next(rngs), inputs[0].shape)
    real = np.asarray(mask_of_lengths([53, 7, 0], 53))

    def exact(query, key, value):
        convolved = depthwise_convolution(value, kernel) if at_ends else 0
        return softmax_attention(query, key, value) + convolved

    def place(x, filler):
        placed = np.full((3, total, 2, 5), filler, np.float32)
        placed[:, places] = np.where(real[..., None, None], x, filler)
        return placed

    mask = np.zeros((3, total), bool)
    mask[:, places] = real
    padded = [place(x, jnp.nan) for x in inputs]
    output, gradients = jax.device_get(
        forward_and_gradients(
            functools.partial(attend, mask=jnp.asarray(mask)), padded, place(weights, 0.0)
        )
    )
    assert np.isfinite(output).all()
    assert (output[2] == 0).all()
    assert all((gradient[~mask] == 0).all() for gradient in gradients)
    for b, (length, reference) in enumerate(((53, attend), (7, exact))):
        *alone, cotangent = (x[b : b + 1, :length] for x in (*inputs, weights))
        expected = forward_and_gradients(reference, alone, cotangent)
        actual = [x[b : b + 1, places[:length]] for x in (output, *gradients)]
        assert_close(actual, [expected[0], *expected[1]], REFERENCE)
