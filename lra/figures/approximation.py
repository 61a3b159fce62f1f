"""Errors of Nyström attention relative to softmax attention, on queries, keys and values of a model."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lra.figures.captured import QKV, CoreCall, unpadded
from nystromformer_jax import (
    collect,
    iterative_pinv,
    nystrom_attention,
    nystrom_factors,
    pinv_residual,
    softmax_attention,
)
from nystromformer_jax.attention.approximation import relative_error
from nystromformer_jax.attention.functions import find_landmarks, softmax_weights
from nystromformer_jax.attention.options import DEFAULTS, NystromOptions
from nystromformer_jax.attention.stages import MIN_ROW_SUM
from nystromformer_jax.support.values import Start
from nystromformer_jax.typing import Array, Float

# Maximum number of softmax attention weights in memory: one head on 4,096 tokens.
MAX_WEIGHTS = 4096**2

# Values that `curves` measures.
LANDMARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIXED_LANDMARKS = (64, 32)  # for the errors by length
SHORTEST = 128
STARTS: tuple[Start, ...] = ("exact", "batch_max")
MAX_ITERS = 20

Floats = npt.NDArray[np.float64]
_product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_softmax_attention = jax.jit(softmax_attention)


def nystrom_options(attention: Mapping[str, Any]) -> NystromOptions:
    """Reads the attention section of a config; returns the defaults if it is not Nyström attention."""
    known = DEFAULTS if attention["name"] == "nystrom" else ()
    return NystromOptions(**{name: attention[name] for name in known if name in attention})


def random_tokens(like: QKV, seed: int) -> QKV:
    """Returns standard normal queries, keys and values with the shapes of `like`."""
    rngs = jax.random.split(jax.random.key(seed), 3)
    return QKV(*(jax.random.normal(rng, x.shape) for rng, x in zip(rngs, like, strict=True)))


class HeadMaps(NamedTuple):
    """Attention map of a head and its Nyström approximation as images, with relative errors."""

    exact: Floats  # [P, P], block means of the map
    approximate: Floats
    map_error: float  # ‖approximate − exact‖ / ‖exact‖ of the full maps
    output_error: float  # the same error for the product of map and value
    length: int  # number of tokens


def head_maps(layer: CoreCall, nystrom: NystromOptions, *, max_pixels: int = 512) -> list[HeadMaps]:
    """Returns the maps of each head for the real tokens of the first sequence.

    Maps are computed in blocks of rows with at most `MAX_WEIGHTS` weights.
    """
    real, tokens = np.asarray(layer.mask[0]), unpadded(layer)
    # Padding is included, because some landmark layouts also divide padding into segments.
    factors = nystrom_factors(
        layer.query[:1].astype(jnp.float32),
        layer.key[:1].astype(jnp.float32),
        mask=layer.mask[:1],
        **dataclasses.asdict(nystrom),
    )
    length, heads = tokens.query.shape[1:3]
    edges = block_edges(length, max_pixels)
    step = max(1, MAX_WEIGHTS // length * (len(edges) - 1) // length)
    found = []
    for head in range(heads):
        query, key, value = (x[0, :, head] for x in tokens)
        left_factor = _product(factors.kernel_1[0, head][real], factors.inverse[0, head])
        kernel_3 = factors.kernel_3[0, head][:, real]
        pictures: tuple[list[Floats], list[Floats]] = ([], [])
        squares = np.zeros(4)
        for first in range(0, len(edges) - 1, step):
            own = edges[first : first + step + 1]
            rows = slice(own[0], own[-1])
            *maps, part = _rows_of_maps(query[rows], key, value, left_factor[rows], kernel_3)
            squares += np.asarray(part)
            for picture, weights in zip(pictures, maps, strict=True):
                picture.append(block_means(np.asarray(weights), own - own[0], edges))
        map_error, map_size, output_error, output_size = np.sqrt(squares).tolist()
        exact, approximate = map(np.concatenate, pictures)
        errors = map_error / map_size, output_error / output_size
        found.append(HeadMaps(exact, approximate, *errors, length))
    return found


@jax.jit
def _rows_of_maps(
    query: Float[Array, "R D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T D"],
    left_factor: Float[Array, "R M"],  # kernel_1 · inverse
    kernel_3: Float[Array, "M T"],
) -> tuple[Float[Array, "R T"], Float[Array, "R T"], Float[Array, "4"]]:
    """Returns rows of the exact and the approximate attention map of a head, and four sums of squares.

    The squares are those of the difference between the maps, of the exact map, of the difference between
    the outputs, and of the exact output.
    """
    exact = softmax_weights(query[None, :, None], key[None, :, None], None)[0, 0]
    approximate = _product(left_factor, kernel_3)
    difference = approximate - exact
    parts = (difference, exact, _product(difference, value), _product(exact, value))
    return exact, approximate, jnp.stack([(part**2).sum() for part in parts])


def block_edges(length: int, max_blocks: int) -> npt.NDArray[np.int64]:
    """Returns the edges of at most `max_blocks` blocks; sizes of blocks differ by at most one."""
    blocks = min(length, max_blocks)
    return -(-np.arange(blocks + 1) * length // blocks)


def block_means(
    x: npt.NDArray[Any], rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
) -> Floats:
    """Returns the mean of each block of a matrix; `rows` and `columns` are the edges of the blocks."""
    sums = np.add.reduceat(x.astype(np.float64), rows[:-1], axis=0)
    sums = np.add.reduceat(sums, columns[:-1], axis=1)
    return sums / (np.diff(rows)[:, None] * np.diff(columns)[None])


def chunked_softmax_attention(tokens: QKV) -> Float[Array, "B L H D"]:
    """Computes softmax attention with at most `MAX_WEIGHTS` weights in memory."""
    batch, length, heads, _ = tokens.query.shape
    rows = max(1, MAX_WEIGHTS // length)

    def of_head(example: int, head: int) -> Float[Array, "L D"]:
        query, key, value = (x[example : example + 1, :, head : head + 1] for x in tokens)
        parts = [
            _softmax_attention(query[:, first : first + rows], key, value)
            for first in range(0, length, rows)
        ]
        return jnp.concatenate(parts, axis=1)[0, :, 0]

    every = [[of_head(example, head) for head in range(heads)] for example in range(batch)]
    return jnp.stack([jnp.stack(one, axis=1) for one in every])


def output_errors(layers: Iterable[QKV], exact: Iterable[Array], nystrom: NystromOptions) -> Floats:
    """Returns relative output errors of Nyström attention without convolution, [K B H] for K layers."""
    options = dataclasses.asdict(nystrom)
    errors = [
        relative_error(nystrom_attention(*tokens, **options), truth)
        for tokens, truth in zip(layers, exact, strict=True)
    ]
    return np.asarray(jnp.stack(errors), np.float64)


def errors_by_iteration(
    layers: Iterable[QKV], exact: Iterable[Array], nystrom: NystromOptions, max_iters: int
) -> tuple[Floats, Floats]:
    """Computes errors after 0 to `max_iters` iterations of the pseudoinverse.

    Returns:
      `(residuals, output errors)`, both [I K B H] for K layers; see `pinv_residual` and
      `output_errors`.
    """
    start, residuals, errors = nystrom.pinv_start, [], []
    options = dataclasses.replace(nystrom, pinv="iterative", pinv_iters=0)
    for (query, key, value), truth in zip(layers, exact, strict=True):
        landmarks = find_landmarks(query, key, None, None, options)
        kernel_1 = softmax_weights(query, landmarks.k_landmarks, None)
        values, _, total = collect(landmarks.q_landmarks, key, value, mask=None)
        collected = values / total[..., None]
        for iteration in range(max_iters + 1):
            inverse = iterative_pinv(landmarks.kernel_2, num_iters=iteration, start=start)
            residuals.append(pinv_residual(landmarks.kernel_2, inverse))
            output = _distribute(kernel_1, inverse, collected, nystrom.normalize_rows)
            errors.append(relative_error(output, truth))
    shape = (-1, max_iters + 1, *errors[0].shape)
    stacked = (np.asarray(jnp.stack(found), np.float64) for found in (residuals, errors))
    one, other = (found.reshape(shape).swapaxes(0, 1) for found in stacked)
    return one, other


@functools.partial(jax.jit, static_argnames="normalize_rows")
def _distribute(
    kernel_1: Float[Array, "B H L M"],
    inverse: Float[Array, "B H M M"],
    collected: Float[Array, "B M H D"],
    normalize_rows: bool,
) -> Float[Array, "B L H D"]:
    output = _product(kernel_1, _product(inverse, collected.swapaxes(1, 2)))
    if normalize_rows:  # the rows of kernel_3 sum to 1
        sums = _product(kernel_1, inverse.sum(axis=-1, keepdims=True))
        output /= jnp.maximum(sums, MIN_ROW_SUM)
    return output.swapaxes(1, 2)


def quartiles(values: npt.ArrayLike) -> dict[str, float]:
    """Returns the median and the lower and upper quartile."""
    lower, median, upper = np.percentile(np.asarray(values), (25, 50, 75)).tolist()
    return {"lower": lower, "median": median, "upper": upper}


def curves(layers: Sequence[QKV], nystrom: NystromOptions) -> dict[str, Any]:
    """Computes errors by number of landmarks, by length and by number of iterations.

    Each entry has the `quartiles` over layers, sequences and heads. Errors by iteration are computed for
    both initializations of the pseudoinverse. The landmark layout is "real", which supports any length.
    """
    nystrom = dataclasses.replace(nystrom, landmark_layout="real")
    length = layers[0].query.shape[1]
    halvings = max(0, int(math.log2(length / SHORTEST)))
    by_landmarks, by_length, by_iteration = [], [], {}
    for shorter in [length >> halving for halving in range(halvings + 1)]:
        prefixes = [tokens.first(shorter) for tokens in layers]
        exact = [chunked_softmax_attention(tokens) for tokens in prefixes]
        for count in LANDMARKS if shorter == length else FIXED_LANDMARKS:
            if count >= shorter:
                continue  # the attention is exact
            made = dataclasses.replace(nystrom, num_landmarks=count)
            error = quartiles(output_errors(prefixes, exact, made))
            if shorter == length:
                by_landmarks.append({"num_landmarks": count, **error})
            if count in FIXED_LANDMARKS:
                by_length.append({"num_landmarks": count, "length": shorter, **error})
        if shorter == length:
            for start in STARTS:
                made = dataclasses.replace(nystrom, pinv_start=start)
                found = zip(*errors_by_iteration(layers, exact, made, MAX_ITERS), strict=True)
                by_iteration[start] = [
                    {"iterations": i, "residual": quartiles(one), "output_error": quartiles(other)}
                    for i, (one, other) in enumerate(found)
                ]
    return {"by_landmarks": by_landmarks, "by_length": by_length, "by_iteration": by_iteration}
