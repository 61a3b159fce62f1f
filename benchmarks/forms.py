"""Forms of attention that the benchmarks compare, as functions of query, key, value, kernel and mask.

ours      `nystrom_attention` as the device chooses it; "ours, k-means" with landmarks by k-means, and "ours,
          ridge" with the ridge inverse
kernels   our kernels for TPUs
plain     our form without kernels
literal   other implementations, translated operation by operation, without a mask
exact     softmax attention; "exact (JAX)" and "cudnn" are JAX's own, the latter without a mask
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.literal import literal_attention
from nystromformer_jax import SelfAttention, make_core, nystrom_attention, softmax_attention
from nystromformer_jax.support.values import Implementation

BATCH, HEADS, DIM, LANDMARKS, WIDTH = 8, 8, 64, 64, 33
MODES = ("forward", "gradient")


def form_of(form: str, mode: str = "forward") -> Callable[..., Any]:
    """Returns a function of (query, key, value, kernel, mask), and in the mode "gradient" of a cotangent.

    Kernel and mask may be None. With a gradient, the results are the output and the gradients of query, key,
    value and kernel.
    """
    attend: Callable[..., Any] = functools.partial(_attend, form)
    if mode == "forward":
        return attend

    def gradient(
        query: Any, key: Any, value: Any, kernel: Any, mask: Any, cotangent: Any
    ) -> tuple[Any, Any]:
        return with_gradient(lambda *arrays: attend(*arrays, mask))(
            query, key, value, kernel, cotangent
        )

    return gradient


def with_gradient(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """Returns a function of the arguments and a cotangent, with the output and all gradients as results.

    The output is a result, too, as in training, where it enters the loss.
    """

    def gradient(*arguments: Any) -> tuple[Any, Any]:
        *inputs, cotangent = arguments
        output, pull_back = jax.vjp(function, *inputs)
        return output, pull_back(cotangent)

    return gradient


def our_module(conv: int = WIDTH, dtype: Any = jnp.float32) -> SelfAttention:
    """Returns our module with its projections, with the sizes of Hugging Face's."""
    core = make_core("nystrom", num_landmarks=LANDMARKS, conv_kernel_size=conv)
    return SelfAttention(HEADS, core, dtype=dtype, param_dtype=dtype)


def _attend(
    form: str, query: Any, key: Any, value: Any, kernel: Any = None, mask: Any = None
) -> Any:
    if form == "literal":
        return literal_attention(query, key, value, kernel, LANDMARKS)
    if form == "exact":
        return softmax_attention(query, key, value, mask=mask)
    if form in ("exact (JAX)", "cudnn"):
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=None if mask is None else mask[:, None, None],
            implementation="cudnn" if form == "cudnn" else None,
        )
    implementation: Implementation = "auto"
    if form in ("kernels", "plain"):
        implementation = "pallas_tpu" if form == "kernels" else "xla"
    return nystrom_attention(
        query,
        key,
        value,
        num_landmarks=LANDMARKS,
        mask=mask,
        conv_kernel=kernel,
        landmark_selection="kmeans" if form.endswith("k-means") else "segments",
        pinv="ridge" if form.endswith("ridge") else "iterative",
        implementation=implementation,
    )
