"""Performer attention (FAVOR+): random features that approximate the softmax kernel."""

import contextlib
import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.attention.checks import accum_dtype, masked_inputs
from nystromformer_jax.cores.core import AttentionCore, CoreInputs
from nystromformer_jax.cores.linear import feature_attention
from nystromformer_jax.cores.parameters import sampling_rng
from nystromformer_jax.support.values import check_choice, check_size
from nystromformer_jax.typing import Array, Bool, Float

Kernel = Literal["softmax", "relu"]

# Keeps the weights of the relu kernel positive; called `kernel_epsilon` in the authors' code.
RELU_EPSILON = 1e-3


class PerformerAttention(AttentionCore):
    """Performer attention with random features, in O(L + T). Supports L ≠ T.

    All heads and examples of a layer share one random projection. Layers have different projections, except
    those of one `nn.scan` or `nn.vmap`.

    Attributes:
      num_features: R; the Nyströmformer authors use 256 on LRA.
      kernel: `"softmax"` or `"relu"`; see `performer_attention`.
      orthogonal: If True, directions are orthogonal in blocks of D, which lowers the variance.
      redraw: If True, each training call draws a new projection from the stream "dropout".
      seed: Seed of the projection, used without `redraw` or if `deterministic`.
      layer_name: Name of the layer, on which the projection depends as well; empty for the core's path.
    """

    num_features: int = 256
    kernel: Kernel = "softmax"
    orthogonal: bool = True
    redraw: bool = False
    seed: int = 0
    layer_name: str = ""

    @property
    def needs_dropout_rng(self) -> bool:
        return self.redraw

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Array:
        redraw = self.redraw and not deterministic
        # Without `redraw` the projection is a constant, which is computed once, when the call is traced.
        with contextlib.nullcontext() if redraw else jax.ensure_compile_time_eval():
            projection = random_projection(
                sampling_rng(self, self.seed, self.layer_name, redraw=redraw),
                self.num_features,
                np.shape(inputs.query)[-1],  # validated below
                orthogonal=self.orthogonal,
            )
        return performer_attention(projection=projection, kernel=self.kernel, **inputs._asdict())


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
    """Approximates softmax attention with R random features, in O((L + T) R D).

        φ(query) (φ(key)ᵀ value) / (φ(query) · Σ φ(key))
        "softmax": φ(x) = exp(projection x' − |x'|² / 2) / √R
        "relu":    φ(x) = (relu(projection x') + 1e-3) / √R
        with x' = x / D^¼ and Σ over T

    With the softmax kernel, φ(query) · φ(key) is an unbiased estimate of exp(query · key / √D). The relu
    kernel does not approximate softmax attention.

    The rows of `projection` are standard normal vectors, see `random_projection`. Other arguments and
    errors are as in `linear_attention`.

    Source: Choromanski et al. 2021, arXiv:2009.14794, Lemma 1; for the relu kernel google-research,
    performer/fast_attention/jax/fast_attention.py.
    Differs: google-research adds ε to the features of the softmax kernel and to the sums, which biases
    the weights; `feature_attention` needs no ε. google-research does not scale the inputs of the relu
    kernel.
    """
    query, key, value = masked_inputs(query, key, value, mask, query_mask)
    projection = jnp.asarray(projection)
    if projection.ndim != 2 or projection.shape[1] != query.shape[-1]:
        raise ValueError(
            f"projection must be [num_features, head_dim] with head_dim = {query.shape[-1]} as in"
            f" query, got {projection.shape}."
        )
    check_choice("kernel", kernel, Kernel)
    log_features = log_softmax_features if kernel == "softmax" else log_relu_features
    output = feature_attention(
        log_features(query, projection), log_features(key, projection), value, mask
    )
    return output.astype(query.dtype)


def log_softmax_features(
    x: Float[Array, "B L H D"], projection: Float[Array, "R D"]
) -> Float[Array, "B L H R"]:
    """Returns log φ(x) for the softmax kernel, in at least float32."""
    x = _scaled(x)
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return _project(x, projection) - square / 2 - jnp.log(len(projection)) / 2


def log_relu_features(
    x: Float[Array, "B L H D"], projection: Float[Array, "R D"]
) -> Float[Array, "B L H R"]:
    """Returns log φ(x) for the relu kernel, in at least float32."""
    features = jax.nn.relu(_project(_scaled(x), projection)) + RELU_EPSILON
    return jnp.log(features) - jnp.log(len(projection)) / 2


def random_projection(
    rng: Array, num_features: int, dim: int, *, orthogonal: bool
) -> Float[Array, "R D"]:
    """Returns R random standard normal vectors of length D.

    With `orthogonal`, rows are orthogonal within blocks of D rows (the last block may be shorter).
    Otherwise all rows are independent.

    Raises:
      ValueError: R or D is below one.

    Source: Choromanski et al. 2021, arXiv:2009.14794, and google-research's fast_attention.py.
    Differs: google-research keeps the signs of the QR decomposition, so the first element of the first
    row of each block is never positive, which biases the weights.
    """
    check_size("num_features (R)", num_features)
    check_size("head_dim (D)", dim)
    return _random_projection(rng, num_features, dim, orthogonal)


# Compiled once per size, also outside of jit and where it is computed at trace time.
@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _random_projection(
    rng: Array, num_features: int, dim: int, orthogonal: bool
) -> Float[Array, "R D"]:
    normal_rng, block_rng = jax.random.split(rng)
    normal = jax.random.normal(normal_rng, (num_features, dim), jnp.float32)
    if not orthogonal:
        return normal
    blocks = jax.random.normal(block_rng, (-(-num_features // dim), dim, dim), jnp.float32)
    directions = orthonormal_columns(blocks).reshape(-1, dim)  # rows are orthonormal, too
    return directions[:num_features] * jnp.linalg.norm(normal, axis=-1, keepdims=True)


def orthonormal_columns(blocks: Float[Array, "N D D"]) -> Float[Array, "N D D"]:
    """Returns Q of the QR decomposition of each block, where R has a positive diagonal.

    If the blocks are standard normal, Q is uniformly distributed (Haar). It is computed by Gram–Schmidt,
    applied twice per column.

    Differs from `jnp.linalg.qr`: does not call LAPACK. On a CPU a batched LAPACK call waits in XLA's
    thread pool for threads of the same pool, so two concurrent calls on two cores deadlock.
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
    """Returns x / D^¼ in at least float32; query and key together are scaled by 1 / √D."""
    return x.astype(accum_dtype(x.dtype)) * x.shape[-1] ** -0.25


def _project(x: Float[Array, "B L H D"], projection: Float[Array, "R D"]) -> Array:
    return jnp.einsum("BLHD,RD->BLHR", x, projection.astype(x.dtype))
