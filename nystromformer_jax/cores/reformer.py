"""Reformer attention: locality-sensitive hashing selects the tokens that attend to each other."""

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp

from nystromformer_jax.attention.checks import (
    accum_dtype,
    check_inputs,
    check_query_mask,
    check_self_attention,
    mask_or_ones,
    pad_length,
    zero_padding,
)
from nystromformer_jax.attention.stages import MASKED_LOGIT
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.parameters import sampling_rng
from nystromformer_jax.support.values import check_size, is_integer
from nystromformer_jax.typing import Array, Bool, Float, Int, Shaped

# Below every logit of vectors with a finite float32 norm, but above `MASKED_LOGIT`.
SELF_LOGIT = -1e20
# Hashing a token to n buckets costs D · n / 2, so many buckets are products of smaller numbers.
MAX_BUCKET_BITS = 6


def lsh_attention(
    query: Float[Array, "B L H D"],
    value: Float[Array, "B T H D"],
    rng: Array,
    *,
    num_hashes: int = 2,
    chunk_len: int = 64,
    num_buckets: int | None = None,
    mask: Bool[Array, "B T"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes self-attention among similar tokens, in O(L) after an O(L log L) sort.

        logits = query keyᵀ,  key = query / |query|
        output = Σ_r softmax_r(lse_r) · softmax(logits_r) @ value,  lse_r = log Σ exp(logits_r)

    In each hashing round r the tokens are sorted by bucket, then by position, and divided into chunks. A
    token attends to its chunk and the previous chunk, also across buckets. It attends to itself only if
    there is no other token in reach. A key that a query attends to in several rounds is counted several
    times. Keys have unit length, so logits are not divided by √D. Supports reverse-mode differentiation
    only.

    Args:
      query: Queries, also used as keys. Padding of `query` and `value` has no effect at real tokens.
      value: Values, of the same length as `query`.
      rng: Random key of the rotations, which all heads and examples share.
      num_hashes: Number of rounds; there are 2 L · chunk_len · num_hashes logits per head.
      chunk_len: Tokens per chunk.
      num_buckets: A power of two; 1 sorts only by position. None: the largest power of two up to
        2 L / chunk_len, at least 2. L includes padding, so set a number if results must not depend on
        the amount of padding.
      mask: True at real tokens; None means all are real. Padding is sorted to the end. Without a real
        token the output is zero. Rows of masked tokens are finite but otherwise unspecified.

    Raises:
      ValueError: L ≠ T, a size is invalid, or shapes do not agree.

    Source: Kitaev et al. 2020, arXiv:2001.04451, Section 2; `LSHSelfAttention` of trax, which also
    attends across buckets and, unlike the paper, does not correct for keys counted several times.
    Differs: the first chunk has no previous chunk, while trax wraps around to the last; rounds are
    divided into chunks separately, while trax concatenates the rounds.
    """
    query, value = jnp.asarray(query), jnp.asarray(value)
    check_inputs(query, value, value, mask)
    check_self_attention("LSH", query, value)
    length = query.shape[1]
    check_size("num_hashes", num_hashes)
    check_size("chunk_len", chunk_len)
    if num_buckets is None:
        num_buckets = 2 ** (int(max(2 * length // chunk_len, 2)).bit_length() - 1)
    rotations = draw_rotations(rng, num_hashes, query.shape[-1], num_buckets)
    return _lsh_attention(query, value, mask, rotations, num_hashes, min(chunk_len, length))


def draw_rotations(
    rng: Array, num_hashes: int, head_dim: int, num_buckets: int
) -> list[Float[Array, "rounds D _"]]:
    """Returns random rotation matrices for hashing, with n / 2 columns for n buckets.

    For more than 64 buckets there are several matrices, and `hash_buckets` combines their buckets.
    """
    if not is_integer(num_buckets) or num_buckets < 1 or int(num_buckets).bit_count() != 1:
        raise ValueError(f"num_buckets must be a power of two, got {num_buckets!r}.")
    num_bits = int(num_buckets).bit_length() - 1
    num_factors = -(-num_bits // MAX_BUCKET_BITS)
    factors = [2 ** ((num_bits + i) // num_factors) for i in range(num_factors)]
    rngs = jax.random.split(rng, num_factors)
    return [
        jax.random.normal(rng, (num_hashes, head_dim, factor // 2), jnp.float32)
        for rng, factor in zip(rngs, factors, strict=True)
    ]


def hash_buckets(
    x: Float[Array, "B H L D"], rotations: Sequence[Float[Array, "rounds D _"]], num_hashes: int
) -> Int[Array, "rounds B H L"]:
    """Returns the bucket of each vector in each round; similar vectors often share a bucket.

    bucket = argmax([x R, -x R]);  bucket = bucket · n + argmax(…) for each further R with n buckets
    """
    x = jax.lax.stop_gradient(x.astype(accum_dtype(x.dtype)))
    buckets = jnp.zeros((num_hashes, *x.shape[:-1]), jnp.int32)
    for rotation in rotations:
        rotated = jnp.einsum("BHLD,NDR->NBHLR", x, rotation.astype(x.dtype))
        nearest = jnp.concatenate([rotated, -rotated], axis=-1).argmax(axis=-1)
        buckets = buckets * (2 * rotation.shape[-1]) + nearest.astype(jnp.int32)
    return buckets


@jax.custom_vjp
def permute(
    x: Float[Array, "B H L D"], order: Int[Array, "B H L"], inverse: Int[Array, "B H L"]
) -> Float[Array, "B H L D"]:
    """Returns the vectors of `x` in the given order; `inverse` is the inverse permutation.

    The gradient is a gather with `inverse`. Automatic differentiation would use a scatter, which is equally
    fast on a CPU and, according to trax, slower on a TPU.
    """
    del inverse
    return jnp.take_along_axis(x, order[..., None], axis=2, mode="promise_in_bounds")


def _permute_forward(x: Array, order: Array, inverse: Array) -> tuple[Array, tuple[Array, Array]]:
    return permute(x, order, inverse), (order, inverse)


def _permute_backward(residuals: tuple[Array, Array], cotangent: Array) -> tuple[Array, None, None]:
    order, inverse = residuals
    return permute(cotangent, inverse, order), None, None


permute.defvjp(_permute_forward, _permute_backward)


# Jitted, so that a call outside of jit compiles once instead of once per operation.
@functools.partial(jax.jit, static_argnames=("num_hashes", "chunk_len"))
def _lsh_attention(
    query: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    mask: Bool[Array, "B L"] | None,
    rotations: Sequence[Float[Array, "rounds D _"]],
    num_hashes: int,
    chunk_len: int,
) -> Float[Array, "B L H D"]:
    """Computes `lsh_attention` for validated arguments."""
    length = query.shape[1]
    real = pad_length(mask_or_ones(mask, query), chunk_len)
    query, value = (
        pad_length(zero_padding(x, mask), chunk_len).swapaxes(1, 2) for x in (query, value)
    )

    num_buckets = math.prod(2 * rotation.shape[-1] for rotation in rotations)
    buckets = hash_buckets(query, rotations, num_hashes)
    buckets = jnp.where(real[None, :, None, :], buckets, num_buckets)
    orders = jnp.argsort(buckets, axis=-1, stable=True)
    inverses = jnp.argsort(orders, axis=-1)
    sorted_real = jnp.arange(real.shape[1])[None, :] < real.sum(axis=1)[:, None]

    def attend(order: Array, inverse: Array) -> tuple[Array, Array]:
        sorted_query, sorted_value = (permute(x, order, inverse) for x in (query, value))
        output, lse = _attend_in_chunks(sorted_query, sorted_value, sorted_real, chunk_len)
        return permute(output, inverse, order), permute(lse, inverse, order)

    outputs, lses = jax.vmap(attend)(orders, inverses)
    output = (jax.nn.softmax(lses, axis=0) * outputs).sum(axis=0)
    return output.swapaxes(1, 2)[:, :length].astype(query.dtype)


def _attend_in_chunks(
    query: Float[Array, "B H L D"],
    value: Float[Array, "B H L D"],
    mask: Bool[Array, "B L"],
    chunk_len: int,
) -> tuple[Float[Array, "B H L D"], Float[Array, "B H L 1"]]:
    """Returns attention of each chunk to itself and the previous chunk, and log Σ exp(logits)."""
    batch, _, length, _ = query.shape
    accumulator = accum_dtype(query.dtype)

    def chunks(x: Array) -> Shaped[Array, "B _ K S _"]:
        return x.reshape(batch, x.shape[1], length // chunk_len, chunk_len, x.shape[-1])

    def with_chunk_before(x: Array) -> Shaped[Array, "B _ K T _"]:
        before = jnp.pad(x[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0), (0, 0)))
        return jnp.concatenate([before, x], axis=3)

    key = with_chunk_before(chunks(_unit_length(query)))
    logits = jnp.einsum(
        "BHKSD,BHKTD->BHKST", chunks(query), key, preferred_element_type=accumulator
    )
    itself = jnp.eye(chunk_len, 2 * chunk_len, k=chunk_len, dtype=bool)
    logits = jnp.where(itself[None, None, None], SELF_LOGIT, logits)
    real_keys = with_chunk_before(chunks(mask[:, None, :, None])).swapaxes(3, 4)
    logits = jnp.where(real_keys, logits, MASKED_LOGIT)

    maximum = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    weights = jnp.exp(logits - maximum)
    total = weights.sum(axis=-1, keepdims=True)
    output = jnp.einsum(
        "BHKST,BHKTD->BHKSD",
        weights.astype(value.dtype),
        with_chunk_before(chunks(value)),
        preferred_element_type=accumulator,
    )
    lse = maximum + jnp.log(total)
    return (output / total).reshape(query.shape), lse.reshape(*query.shape[:-1], 1)


def _unit_length(x: Float[Array, "B H L D"]) -> Float[Array, "B H L D"]:
    """Returns `x` / |x|, and zero for zero vectors; the ε under the root is that of trax."""
    x_f32 = x.astype(accum_dtype(x.dtype))
    square = (x_f32**2).sum(axis=-1, keepdims=True)
    return (x_f32 * jax.lax.rsqrt(square + 1e-6 * x.shape[-1])).astype(x.dtype)


class ReformerAttention(AttentionCore):
    """Reformer (LSH) attention with shared queries and keys, in O(L log L). Self-attention only.

    `query_mask` should equal `mask`. Rows masked by either are unspecified.

    Attributes:
      num_hashes: Number of hashing rounds; see `lsh_attention`, also for the next two attributes.
      chunk_len: Tokens per chunk.
      num_buckets: A power of two; None: chosen from the length, including padding.
      redraw: If True, each training call draws new rotations from the stream "dropout".
      seed: Seed of the rotations, used without `redraw` or if `deterministic`.
      layer_name: Name of the layer, on which the rotations depend as well; empty for the core's path.
    """

    shares_query_and_key: ClassVar[bool] = True

    num_hashes: int = 2
    chunk_len: int = 64
    num_buckets: int | None = None
    redraw: bool = True
    seed: int = 0
    layer_name: str = ""

    @property
    def needs_dropout_rng(self) -> bool:
        return self.redraw

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        query, key, value, mask, query_mask = inputs
        check_inputs(query, key, value, mask)
        check_query_mask(query, key, mask, query_mask)
        if query_mask is not None and mask is None:
            raise ValueError(
                "LSH attention uses queries as keys, so both have the same mask: pass `mask`, with"
                " query_mask None or the same."
            )
        return lsh_attention(
            query,
            value,
            sampling_rng(
                self, self.seed, self.layer_name, redraw=self.redraw and not deterministic
            ),
            num_hashes=self.num_hashes,
            chunk_len=self.chunk_len,
            num_buckets=self.num_buckets,
            mask=mask,
        )
