"""Nyström attention of other implementations, ported to JAX operation by operation.

Arrays are [B, H, L, D]. Landmarks are means over an axis of a reshaped array. All three factors are kept in
memory, products associate from the left, and the convolution is a grouped 2-D convolution.

Source: Xiong et al. 2021, arXiv:2102.03902; Hugging Face's modeling_nystromformer.py.
"""

import jax
import jax.numpy as jnp

from nystromformer_jax.typing import Array, Float


def literal_attention(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L H D"],
    value: Float[Array, "B L H D"],
    conv_kernel: Float[Array, "H W"],
    num_landmarks: int,
) -> Float[Array, "B L H D"]:
    """Returns the attention's output; L must be a multiple of M."""
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
