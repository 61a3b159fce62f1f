"""Performer attention (FAVOR+): random features whose product is the softmax's exponential on average."""

from typing import Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from nystromformer_jax.cores.linear import feature_attention
from nystromformer_jax.cores.randomness import sampling_rng
from nystromformer_jax.inputs import check_inputs, check_query_mask, where_real
from nystromformer_jax.sizes import check_size
from nystromformer_jax.typing import Array, Bool, Float

Kernel = Literal["softmax", "relu"]

# Keeps every weight of the relu kernel positive; the authors' `kernel_epsilon`.
RELU_EPSILON = 1e-3


class PerformerAttention(nn.Module):
    """Attends by random features, in O(L + T). L ≠ T works.

    Heads and examples share one projection; every layer draws its own.

    Attributes:
      num_features: R; 256 in the Nyströmformer authors' runs on LRA.
      kernel: `"softmax"` or `"relu"`; see `performer_attention`.
      orthogonal: Whether directions are orthogonal in blocks of D, which lowers the variance.
      redraw: Whether training draws a projection for each call, from the stream "dropout".
        Otherwise, as when `deterministic`, it is the one of `seed`.
      seed: Of the projection that stays.
    """

    num_features: int = 256
    kernel: Kernel = "softmax"
    orthogonal: bool = True
    redraw: bool = False
    seed: int = 0

    @nn.compact
    def __call__(
        self,
        query: Float[Array, "B L H D"],
        key: Float[Array, "B T H D"],
        value: Float[Array, "B T H D"],
        mask: Bool[Array, "B T"] | None = None,
        query_mask: Bool[Array, "B L"] | None = None,
        *,
        deterministic: bool,
    ) -> Float[Array, "B L H D"]:
        """Attends; see `performer_attention`."""
        check_inputs(query, key, value, mask)
        rng = sampling_rng(self, self.seed, redraw=self.redraw and not deterministic)
        projection = random_projection(
            rng, self.num_features, query.shape[-1], orthogonal=self.orthogonal
        )
        return performer_attention(
            query, key, value, projection, kernel=self.kernel, mask=mask, query_mask=query_mask
        )


def performer_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H D"],
    projection: Float[Array, "R D"],
    *,
    kernel: Kernel = "softmax",
    mask: Bool[Array, "B T"] | None = None,
    query_mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H D"]:
    """Approximates softmax attention by R random features, in O((L + T) R D).

        φ(query) (φ(key)ᵀ value) / (φ(query) · Σ φ(key))
        "softmax": φ(x) = exp(projection x' − |x'|² / 2) / √R
        "relu":    φ(x) = (relu(projection x') + 1e-3) / √R
        with x' = x / D^¼ and Σ over T

    With the first kernel φ(query) · φ(key) is exp(query · key / √D) on average over projections.
    With the second it is another attention, not an approximation of softmax's.

    Args:
      query: What padding holds is never seen, here and in `key` and `value`.
      key: May have another length T (cross-attention).
      value: As long as `key`.
      projection: Its rows are standard normal vectors; see `random_projection`.
      kernel: `"softmax"` or `"relu"`.
      mask: True at real keys; None means that all are. With no real key at all the output is zero.
      query_mask: True at real queries; None means that the queries carry `mask`. Rows of masked
        queries are finite and otherwise unspecified.

    Raises:
      ValueError: Shapes that do not fit, a mask of another shape, or an unknown kernel.

    Source: Choromanski et al. 2021, arXiv:2009.14794, Lemma 1; the relu kernel from google-research,
    performer/fast_attention/jax/fast_attention.py.
    Differs: no ε is added to the features of the softmax kernel or to a sum, as in that code, so
    that the estimate of each weight keeps its mean; `feature_attention` needs none. That code does
    not scale the inputs of the relu kernel.
    """
    query, key, value = jnp.asarray(query), jnp.asarray(key), jnp.asarray(value)
    check_inputs(query, key, value, mask)
    if projection.ndim != 2 or projection.shape[1] != query.shape[-1]:
        raise ValueError(
            f"projection must be [num_features, head_dim] with head_dim = {query.shape[-1]} as in"
            f" query, got {projection.shape}."
        )
    if kernel not in get_args(Kernel):
        raise ValueError(
            f"kernel must be one of {', '.join(map(repr, get_args(Kernel)))}, got {kernel!r}."
        )
    query = where_real(query, check_query_mask(query, key, mask, query_mask))
    key, value = where_real(key, mask), where_real(value, mask)
    log_features = log_softmax_features if kernel == "softmax" else log_relu_features
    output = feature_attention(
        log_features(query, projection), log_features(key, projection), value, mask
    )
    return output.astype(query.dtype)


def log_softmax_features(
    x: Float[Array, "B L H D"], projection: Float[Array, "R D"]
) -> Float[Array, "B L H R"]:
    """Logarithms of the features of the softmax kernel, in at least float32."""
    x = _scaled(x)
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return _project(x, projection) - square / 2 - jnp.log(len(projection)) / 2


def log_relu_features(
    x: Float[Array, "B L H D"], projection: Float[Array, "R D"]
) -> Float[Array, "B L H R"]:
    """Logarithms of the features of the relu kernel, in at least float32."""
    features = jax.nn.relu(_project(_scaled(x), projection)) + RELU_EPSILON
    return jnp.log(features) - jnp.log(len(projection)) / 2


def random_projection(
    rng: Array, num_features: int, dim: int, *, orthogonal: bool
) -> Float[Array, "R D"]:
    """Draws R standard normal vectors of length D.

    Args:
      rng: A key.
      num_features: R, at least 1.
      dim: D.
      orthogonal: Whether rows are orthogonal to each other in blocks of D; the last block may be cut
        short. Each row is standard normal all the same; False makes rows independent.

    Raises:
      ValueError: A number of features below one.

    Source: Choromanski et al. 2021, arXiv:2009.14794, and google-research as above.
    Differs: that code leaves the signs as QR has them. There the first element of the first row of
    each block is never positive, and with it the mean of the estimate is off.
    """
    check_size("num_features (R)", num_features)
    normal_rng, block_rng = jax.random.split(rng)
    normal = jax.random.normal(normal_rng, (num_features, dim))
    if not orthogonal:
        return normal
    blocks = jax.random.normal(block_rng, (-(-num_features // dim), dim, dim))
    directions = orthonormal_columns(blocks).reshape(-1, dim)[:num_features]  # and rows, thereby
    return directions * jnp.linalg.norm(normal, axis=-1, keepdims=True)


def orthonormal_columns(blocks: Float[Array, "N D D"]) -> Float[Array, "N D D"]:
    """The orthogonal factor of each block whose other factor has a positive diagonal.

    Of normal blocks it is uniform (Haar). Column by column, each freed twice of those before it.

    Differs from `jnp.linalg.qr`: no call into LAPACK. On a CPU a batched one waits in a thread of XLA's
    pool for other threads of that pool, so that two layers that ask at once on two cores wait for ever.
    """

    def add_column(i: Array, done: Array) -> Array:
        column = jax.lax.dynamic_index_in_dim(blocks, i, axis=2, keepdims=False)
        for _ in range(2):
            shares = jnp.einsum("NDE,ND->NE", done, column, precision="highest")
            column = column - jnp.einsum("NDE,NE->ND", done, shares, precision="highest")
        column = column / jnp.linalg.norm(column, axis=-1, keepdims=True)
        return jax.lax.dynamic_update_index_in_dim(done, column, i, axis=2)

    return jax.lax.fori_loop(0, blocks.shape[-1], add_column, jnp.zeros_like(blocks))


def _scaled(x: Array) -> Array:
    """A share of 1 / √D for the query and one for the key, in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)) * x.shape[-1] ** -0.25


def _project(x: Float[Array, "B L H D"], projection: Float[Array, "R D"]) -> Array:
    return jnp.einsum("BLHD,RD->BLHR", x, projection)
