"""Attention functions and our module, as functions of a mask and the inputs that the benchmarks compare.

ours      `nystrom_attention` as the device chooses it; "ours, k-means" with landmarks by k-means, and "ours,
          ridge" with the ridge inverse
kernels   our kernels for TPUs
plain     our implementation without kernels
literal   other implementations, translated operation by operation, without a mask
exact     softmax attention; "exact (JAX)" and "cudnn" are JAX's own, the latter without a mask

MODULES have projections. The "exact module" has softmax attention, and "projections" a sum in its place.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax import SelfAttention, make_core, nystrom_attention, softmax_attention
from nystromformer_jax.typing import Array, Bool, Float

BATCH, HEADS, DIM, LANDMARKS, WIDTH = 8, 8, 64, 64, 33
MODES = ("forward", "gradient")
# Arguments of `nystrom_attention`.
OPTIONS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, k-means": {"landmark_selection": "kmeans"},
    "ours, ridge": {"pinv": "ridge"},
    "kernels": {"implementation": "pallas_tpu"},
    "plain": {"implementation": "xla"},
}


class _Sum(nn.Module):
    """In place of attention: the sum of query, key and value."""

    @nn.compact
    def __call__(self, query: Array, key: Array, value: Array, *_: Any, **__: Any) -> Array:
        return query + key + value


def _nystrom(conv: int, pinv: str = "iterative") -> Any:
    return make_core("nystrom", num_landmarks=LANDMARKS, conv_kernel_size=conv, pinv=pinv)


# Cores of modules, for a width of the convolution.
MODULES: dict[str, Callable[[int], Any]] = {
    "our module": _nystrom,
    "our module, ridge": functools.partial(_nystrom, pinv="ridge"),
    "exact module": lambda conv: make_core("softmax"),
    "projections": lambda conv: _Sum,
}


def attend(
    form: str,
    mask: Bool[Array, "B L"] | None,
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    conv_kernel: Float[Array, "H W"] | None = None,
) -> Float[Array, "B L H D"]:
    """Computes attention by one of the forms above; only Nyström attention uses the convolution."""
    inputs = (query, key, value)
    if form == "literal":
        assert conv_kernel is not None
        return literal_attention(*inputs, conv_kernel, LANDMARKS)
    if form == "exact":
        return softmax_attention(*inputs, mask=mask)
    if form in ("exact (JAX)", "cudnn"):
        mask = None if mask is None else mask[:, None, None]
        implementation: Literal["cudnn"] | None = "cudnn" if form == "cudnn" else None
        return jax.nn.dot_product_attention(*inputs, mask=mask, implementation=implementation)
    options = OPTIONS[form]
    return nystrom_attention(
        *inputs, num_landmarks=LANDMARKS, mask=mask, conv_kernel=conv_kernel, **options
    )


def case(
    name: str, mode: str, batch: int, length: int, *, conv: int, dtype: Any, masked: bool = False
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a function and random arguments of a form above.

    Modules have the sizes of Hugging Face's. In the mode "gradient" the results are the output and the
    gradients of all inputs but the mask.
    """
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Array:
        return jnp.asarray(random.normal(size=shape), dtype)

    mask = jnp.broadcast_to(jnp.arange(length) < 0.8 * length, (batch, length)) if masked else None
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    if name in MODULES:
        module = SelfAttention(HEADS, MODULES[name](conv), dtype=dtype, param_dtype=dtype)
        x, cotangent = normal(2, batch, length, HEADS * DIM)
        inputs = (module.init(jax.random.key(0), x, deterministic=True), x)

        def of_module(mask: Any, params: Any, x: Any) -> Any:
            return module.apply(params, x, mask, deterministic=True)

        function = of_module
    else:
        query, key, value, cotangent = normal(4, batch, length, HEADS, DIM)
        kernel = normal(HEADS, conv).astype(jnp.float32) if conv else None
        inputs = (query, key, value, kernel)
        function = functools.partial(attend, name)
    if mode == "forward":
        return function, (mask, *inputs)
    return with_gradient(function), (mask, *inputs, cotangent)


def with_gradient(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Returns a function of a mask, the inputs and a cotangent.

    Its results are that of `function(mask, *inputs)` and the gradients of the inputs. The output is a result,
    as in training, where it enters the loss.
    """

    def gradient(mask: Any, *arguments: Any) -> tuple[Any, Any]:
        *inputs, cotangent = arguments
        output, pull_back = jax.vjp(functools.partial(function, mask), *inputs)
        return output, pull_back(cotangent)

    return gradient


def literal_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    conv_kernel: Float[Array, "H W"],
    num_landmarks: int,
) -> Float[Array, "B L H D"]:
    """Nyström attention of other implementations, ported operation by operation; L is a multiple of M.

    Landmarks are means over an axis of a reshaped array. All three factors are kept in memory, products
    associate from the left, and the convolution is a grouped 2-D convolution.

    Source: Xiong et al. 2021, arXiv:2102.03902; Hugging Face's modeling_nystromformer.py.
    """
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    batch, heads, length, dim = query.shape
    query, key = (x * dim**-0.25 for x in (query, key))
    shape = (batch, heads, num_landmarks, length // num_landmarks, dim)
    q_landmarks, k_landmarks = (x.reshape(shape).mean(axis=3) for x in (query, key))
    kernel_1 = jax.nn.softmax(query @ k_landmarks.mT, axis=-1)
    kernel_2 = jax.nn.softmax((q_landmarks @ k_landmarks.mT).astype(jnp.float32), axis=-1)
    kernel_3 = jax.nn.softmax(q_landmarks @ key.mT, axis=-1)
    inverse = _inverse(kernel_2).astype(query.dtype)
    output = (kernel_1 @ inverse) @ (kernel_3 @ value)
    width = conv_kernel.shape[1]
    output += jax.lax.conv_general_dilated(
        value,
        conv_kernel.astype(value.dtype)[:, None, :, None],
        (1, 1),
        [(width // 2, width // 2), (0, 0)],
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=heads,
    )
    return output.swapaxes(1, 2)


def _inverse(kernel: Float[Array, "B H M M"]) -> Float[Array, "B H M M"]:
    identity = jnp.eye(kernel.shape[-1], dtype=kernel.dtype)[None, None]
    inverse = kernel.mT / kernel.sum(axis=-2).max()
    for _ in range(6):
        product = jnp.matmul(kernel, inverse, precision="highest")
        inner = 15 * identity - jnp.matmul(product, 7 * identity - product, precision="highest")
        inner = 13 * identity - jnp.matmul(product, inner, precision="highest")
        inverse = 0.25 * jnp.matmul(inverse, inner, precision="highest")
    return inverse
