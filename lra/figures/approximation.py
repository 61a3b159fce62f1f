"""Errors of Nyström attention relative to softmax attention, on queries, keys and values of a model."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lra.figures.trained_run import CoreCall, Tokens, unpadded
from nystromformer_jax import (
    iterative_pinv,
    nystrom_attention,
    nystrom_attention_rows,
    pinv_residual,
    softmax_attention,
)
from nystromformer_jax.attention.approximation import relative_error
from nystromformer_jax.attention.functions import find_landmarks, softmax_weights
from nystromformer_jax.attention.options import DEFAULTS, NystromOptions
from nystromformer_jax.support.values import Start
from nystromformer_jax.typing import Array, Float

# Maximum number of attention weights in memory.
MAX_WEIGHTS = 4096**2

# Values that `curves` measures.
LANDMARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIXED_LANDMARKS = (64, 32)  # for the errors by length
SHORTEST = 128
STARTS: tuple[Start, ...] = ("exact", "batch_max")
MAX_ITERS = 20

Floats = npt.NDArray[np.float64]


def nystrom_options(attention: Mapping[str, Any]) -> NystromOptions:
    """Reads the attention section of a config; returns the defaults if it is not Nyström attention."""
    known = DEFAULTS if attention["name"] == "nystrom" else ()
    return NystromOptions(**{name: attention[name] for name in known if name in attention})


def random_tokens(like: Tokens, seed: int) -> Tokens:
    """Returns standard normal queries, keys and values with the shapes of `like`."""
    query, key, value = (
        jax.random.normal(rng, x.shape)
        for rng, x in zip(jax.random.split(jax.random.key(seed), 3), like, strict=True)
    )
    return query, key, value


class HeadMaps(NamedTuple):
    """Attention map of a head and its Nyström approximation as images, with relative errors."""

    exact: Floats  # [P, P], block means of the map
    approximate: Floats
    map_error: float  # ‖approximate − exact‖ / ‖exact‖ of the full maps
    output_error: float  # the same error for the product of map and value


def head_maps(layer: CoreCall, nystrom: NystromOptions, *, max_pixels: int = 512) -> list[HeadMaps]:
    """Returns the maps of each head for the real tokens of the first sequence.

    Maps are computed in blocks of rows with at most `MAX_WEIGHTS` weights.
    """
    # Padding is included, because some landmark layouts also divide padding into segments.
    query, key, value = (x[:1].astype(jnp.float32) for x in layer[:3])
    options: dict[str, Any] = {"mask": layer.mask[:1], **dataclasses.asdict(nystrom)}
    real, heads = np.flatnonzero(layer.mask[0]), query.shape[2]
    output = nystrom_attention(query, key, value, **options)[:, real]
    output_errors = relative_error(output, chunked_softmax_attention(*unpadded(layer)))[0]
    edges = block_edges(len(real), max_pixels)
    step = max(1, MAX_WEIGHTS // (heads * query.shape[1]) * (len(edges) - 1) // len(real))
    blocks, squares = [], np.zeros((2, heads))
    for first in range(0, len(edges) - 1, step):
        own = edges[first : first + step + 1]
        rows = real[own[0] : own[-1]]
        weights = (
            softmax_weights(query[:, rows], key, layer.mask[:1]),
            nystrom_attention_rows(query, key, jnp.asarray(rows)[None], **options),
        )
        exact, approximate = (np.asarray(x[0], np.float64)[:, :, real] for x in weights)
        squares += [(x**2).sum(axis=(1, 2)) for x in (approximate - exact, exact)]
        blocks.append([block_means(x, own - own[0], edges) for x in (exact, approximate)])
    exact, approximate = (np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True))
    map_errors = np.sqrt(squares[0] / squares[1])
    found = zip(exact, approximate, map_errors.tolist(), output_errors.tolist(), strict=True)
    return [HeadMaps(*one) for one in found]


def block_edges(length: int, max_blocks: int) -> npt.NDArray[np.int64]:
    """Returns the edges of at most `max_blocks` blocks; sizes of blocks differ by at most one."""
    blocks = min(length, max_blocks)
    return -(-np.arange(blocks + 1) * length // blocks)


def block_means(x: Floats, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Floats:
    """Returns the mean of each block of matrices; `rows` and `columns` are the edges of the blocks."""
    sums = np.add.reduceat(x, rows[:-1], axis=-2)
    sums = np.add.reduceat(sums, columns[:-1], axis=-1)
    return sums / (np.diff(rows)[:, None] * np.diff(columns)[None])


def chunked_softmax_attention(query: Array, key: Array, value: Array) -> Float[Array, "B L H D"]:
    """Computes softmax attention with at most `MAX_WEIGHTS` weights in memory."""
    batch, length, heads, _ = query.shape
    rows = max(1, MAX_WEIGHTS // (batch * heads * length))
    parts = [
        softmax_attention(query[:, first : first + rows], key, value)
        for first in range(0, length, rows)
    ]
    return jnp.concatenate(parts, axis=1)


def quartiles(values: npt.ArrayLike) -> dict[str, float]:
    """Returns the median and the lower and upper quartile."""
    lower, median, upper = np.percentile(np.asarray(values, np.float64), (25, 50, 75)).tolist()
    return {"lower": lower, "median": median, "upper": upper}


def curves(layers: Sequence[Tokens], nystrom: NystromOptions) -> dict[str, Any]:
    """Computes errors by number of landmarks, by length and by number of iterations.

    Each entry has the `quartiles` over layers, sequences and heads. Errors by iteration are computed for
    both initializations of the pseudoinverse. The landmark layout is "real", which supports any length.
    Counts of landmarks for which the attention is exact, or that own landmarks use up, are left out.
    """
    nystrom = dataclasses.replace(nystrom, landmark_layout="real")
    least = nystrom.num_own_landmarks
    length = layers[0][0].shape[1]
    halvings = max(0, int(math.log2(length / SHORTEST)))
    lengths = [length >> halving for halving in range(halvings + 1)]
    prefixes = {n: [[x[:, :n] for x in tokens] for tokens in layers] for n in lengths}
    exact = {n: [chunked_softmax_attention(*tokens) for tokens in prefixes[n]] for n in lengths}
    kernels = [find_landmarks(*tokens[:2], None, None, nystrom).kernel_2 for tokens in layers]

    def output_error(length: int, **changes: Any) -> dict[str, float]:
        options = dataclasses.asdict(dataclasses.replace(nystrom, **changes))
        errors = [
            relative_error(nystrom_attention(*tokens, **options), truth)
            for tokens, truth in zip(prefixes[length], exact[length], strict=True)
        ]
        return quartiles(errors)

    def residual(iterations: int, start: Start) -> dict[str, float]:
        inverses = [iterative_pinv(x, num_iters=iterations, start=start) for x in kernels]
        return quartiles(list(map(pinv_residual, kernels, inverses)))

    return {
        "by_landmarks": [
            {"num_landmarks": count, **output_error(length, num_landmarks=count)}
            for count in LANDMARKS
            if least < count < length
        ],
        "by_length": [
            {"num_landmarks": count, "length": n, **output_error(n, num_landmarks=count)}
            for n in lengths
            for count in FIXED_LANDMARKS
            if least < count < n
        ],
        "by_iteration": {
            start: [
                {
                    "iterations": i,
                    "residual": residual(i, start),
                    "output_error": output_error(
                        length, pinv="iterative", pinv_iters=i, pinv_start=start
                    ),
                }
                for i in range(MAX_ITERS + 1)
            ]
            for start in STARTS
        },
    }
