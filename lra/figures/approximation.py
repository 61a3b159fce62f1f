"""How near Nyström attention comes to softmax attention, on the queries, keys and values of a model."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lra.figures.captured import Received, Tokens, unpadded
from nystromformer_jax import (
    collect,
    iterative_pinv,
    nystrom_attention,
    nystrom_factors,
    pinv_residual,
    softmax_attention,
)
from nystromformer_jax.attention import find_landmarks, softmax_weights
from nystromformer_jax.inputs import LandmarkOptions
from nystromformer_jax.landmarks import Layout
from nystromformer_jax.pinv import Start
from nystromformer_jax.typing import Array, Float

# Weights of softmax attention that are held at a time: one head's map of 4,096 tokens.
MAX_WEIGHTS = 4096**2

# What the curves of `curves` run over.
LANDMARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FIXED_LANDMARKS = (64, 32)  # among them
SHORTEST = 128
STARTS: tuple[Start, ...] = ("exact", "batch_max")
MAX_ITERS = 20

Floats = npt.NDArray[np.float64]
_product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
_softmax_attention = jax.jit(softmax_attention)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nystrom:
    """How the approximation is made; see `nystrom_attention`."""

    num_landmarks: int = 64
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    normalize_rows: bool = False

    @classmethod
    def of(cls, attention: Mapping[str, Any]) -> "Nystrom":
        """What the attention section of a config says; of another attention, the defaults."""
        if attention["name"] != "nystrom":
            return cls()
        known = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: attention[name] for name in known if name in attention})


def random_tokens(like: Tokens, seed: int) -> Tokens:
    """Standard normal queries, keys and values."""
    rngs = jax.random.split(jax.random.key(seed), 3)
    return Tokens(*(jax.random.normal(rng, x.shape) for rng, x in zip(rngs, like, strict=True)))


class HeadMaps(NamedTuple):
    """A head's attention map and its approximation, as pictures, and how far they are apart."""

    exact: Floats  # [P P], means of blocks of the map
    approximate: Floats
    map_error: float  # relative, of the maps themselves, in the Frobenius norm
    output_error: float  # of the maps times the values
    length: int  # n


def head_maps(layer: Received, nystrom: Nystrom, *, max_pixels: int = 512) -> list[HeadMaps]:
    """Both maps of every head, on the real tokens of the first sequence.

    They are made by blocks of rows; of each at most `MAX_WEIGHTS` are held at a time.
    """
    real, tokens = np.asarray(layer.mask[0]), unpadded(layer)
    # With the padding: some layouts cut it into segments, too.
    factors = nystrom_factors(
        layer.query[:1].astype(jnp.float32),
        layer.key[:1].astype(jnp.float32),
        mask=layer.mask[:1],
        num_landmarks=nystrom.num_landmarks,
        pinv_iters=nystrom.pinv_iters,
        pinv_start=nystrom.pinv_start,
        landmark_layout=nystrom.landmark_layout,
    )
    length, heads = tokens.query.shape[1:3]
    edges = block_edges(length, max_pixels)
    step = max(1, MAX_WEIGHTS // length * (len(edges) - 1) // length)
    found = []
    for head in range(heads):
        query, key, value = (x[0, :, head] for x in tokens)
        kernel_1 = _product(factors.kernel_1[0, head][real], factors.inverse[0, head])
        kernel_3 = factors.kernel_3[0, head][:, real]
        pictures: tuple[list[Floats], list[Floats]] = ([], [])
        squares = np.zeros(4)
        for first in range(0, len(edges) - 1, step):
            own = edges[first : first + step + 1]
            rows = slice(own[0], own[-1])
            *maps, part = _rows_of_maps(
                query[rows], key, value, kernel_1[rows], kernel_3, nystrom.normalize_rows
            )
            squares += np.asarray(part)
            for picture, weights in zip(pictures, maps, strict=True):
                picture.append(block_means(np.asarray(weights), own - own[0], edges))
        map_error, map_size, output_error, output_size = np.sqrt(squares).tolist()
        found.append(
            HeadMaps(
                np.concatenate(pictures[0]),
                np.concatenate(pictures[1]),
                map_error / map_size,
                output_error / output_size,
                length,
            )
        )
    return found


@functools.partial(jax.jit, static_argnames="normalize_rows")
def _rows_of_maps(
    query: Float[Array, "R D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T D"],
    kernel_1: Float[Array, "R M"],
    kernel_3: Float[Array, "M T"],
    normalize_rows: bool,
) -> tuple[Float[Array, "R T"], Float[Array, "R T"], Float[Array, "4"]]:
    """Some rows of a head's two maps; squared: their difference, the first, and the same of outputs.

    The inverse is in `kernel_1` already.
    """
    exact = softmax_weights(query[None, :, None], key[None, :, None], None)[0, 0]
    approximate = _product(kernel_1, kernel_3)
    if normalize_rows:
        approximate /= approximate.sum(axis=1, keepdims=True)
    difference = approximate - exact
    parts = (difference, exact, _product(difference, value), _product(exact, value))
    return exact, approximate, jnp.stack([(part**2).sum() for part in parts])


def block_edges(length: int, max_blocks: int) -> npt.NDArray[np.int64]:
    """Where blocks begin and the last one ends; their sizes differ by one at most."""
    blocks = min(length, max_blocks)
    return -(-np.arange(blocks + 1) * length // blocks)


def block_means(
    x: npt.NDArray[Any], rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]
) -> Floats:
    """Averages the blocks of a matrix that lie between the edges `rows` and `columns`."""
    sums = np.add.reduceat(x.astype(np.float64), rows[:-1], axis=0)
    sums = np.add.reduceat(sums, columns[:-1], axis=1)
    return sums / (np.diff(rows)[:, None] * np.diff(columns)[None])


def softmax_by_parts(tokens: Tokens) -> Float[Array, "B L H D"]:
    """Softmax attention, with at most `MAX_WEIGHTS` weights at a time."""
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


def relative_error(
    output: Float[Array, "B L H D"], exact: Float[Array, "B L H D"]
) -> Float[Array, "B H"]:
    """‖output − exact‖ / ‖exact‖ of each head, Frobenius norms over positions and features."""
    error, size = (jnp.sqrt((x**2).sum(axis=(1, 3))) for x in (output - exact, exact))
    return error / jnp.where(size == 0, 1, size)


def output_errors(layers: Iterable[Tokens], exact: Iterable[Array], nystrom: Nystrom) -> Floats:
    """Relative errors of attention without its convolution, [K B H] of K layers."""
    options = dataclasses.asdict(nystrom)
    errors = [
        relative_error(nystrom_attention(*tokens, **options), truth)
        for tokens, truth in zip(layers, exact, strict=True)
    ]
    return np.asarray(jnp.stack(errors), np.float64)


def by_iterations(
    layers: Iterable[Tokens], exact: Iterable[Array], nystrom: Nystrom, max_iters: int
) -> tuple[Floats, Floats]:
    """What 0 … `max_iters` iterations of the pseudoinverse give; the sequences are one batch.

    Returns:
      `(residuals, output errors)`, both [I K B H] of K layers: see `pinv_residual` and
      `output_errors`.
    """
    start, residuals, errors = nystrom.pinv_start, [], []
    options = LandmarkOptions(
        num_landmarks=nystrom.num_landmarks,
        pinv_iters=0,
        pinv_start=start,
        landmark_layout=nystrom.landmark_layout,
    )
    for (query, key, value), truth in zip(layers, exact, strict=True):
        landmarks = find_landmarks(query, key, None, None, options)
        kernel_1 = softmax_weights(query, landmarks.key, None)
        values, _, total = collect(landmarks.query, key, value, mask=None)
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
    if normalize_rows:  # the rows of kernel_3 sum to one
        output /= _product(kernel_1, inverse.sum(axis=-1, keepdims=True))
    return output.swapaxes(1, 2)


def spread(values: npt.ArrayLike) -> dict[str, float]:
    """Median and quartiles."""
    lower, median, upper = np.percentile(np.asarray(values), (25, 50, 75)).tolist()
    return {"lower": lower, "median": median, "upper": upper}


def curves(layers: Sequence[Tokens], nystrom: Nystrom) -> dict[str, Any]:
    """Errors against landmarks, length and iterations: `spread`s over layers, sequences and heads.

    Args:
      layers: One batch of sequences of each layer.
      nystrom: The number of landmarks is of the curves over iterations, which have both starts; the
        landmarks are those of the layout "real", the only one for any length.
    """
    nystrom = dataclasses.replace(nystrom, landmark_layout="real")
    length = layers[0].query.shape[1]
    halvings = max(0, int(math.log2(length / SHORTEST)))
    by_landmarks, by_length, by_iteration = [], [], {}
    for shorter in [length >> halving for halving in range(halvings + 1)]:
        prefixes = [tokens.first(shorter) for tokens in layers]
        exact = [softmax_by_parts(tokens) for tokens in prefixes]
        for count in LANDMARKS if shorter == length else FIXED_LANDMARKS:
            if count >= shorter:
                continue  # exact
            made = dataclasses.replace(nystrom, num_landmarks=count)
            error = spread(output_errors(prefixes, exact, made))
            if shorter == length:
                by_landmarks.append({"num_landmarks": count, **error})
            if count in FIXED_LANDMARKS:
                by_length.append({"num_landmarks": count, "length": shorter, **error})
        if shorter == length:
            for start in STARTS:
                made = dataclasses.replace(nystrom, pinv_start=start)
                found = zip(*by_iterations(layers, exact, made, MAX_ITERS), strict=True)
                by_iteration[start] = [
                    {"iterations": i, "residual": spread(residual), "output_error": spread(error)}
                    for i, (residual, error) in enumerate(found)
                ]
    return {
        "by_landmarks": by_landmarks,
        "by_length": by_length,
        "by_iteration": by_iteration,
    }
