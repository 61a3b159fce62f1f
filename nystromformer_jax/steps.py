"""The two steps that make Nyström attention, in plain jnp: landmarks collect, tokens are distributed to.

Between them lie only M × M and M × D arrays. A kernel replaces a step; a sum over devices goes between.
"""

import jax
import jax.numpy as jnp

from nystromformer_jax.convolution import depthwise_convolution
from nystromformer_jax.typing import Array, Bool, Float

# Far below every logit, and finite: a row with no real key stays finite and so does its gradient.
MASKED_LOGIT = -1e30


def collect(
    q_landmarks: Float[Array, "B M H D"],
    key: Float[Array, "B T H D"],
    value: Float[Array, "B T H Dv"],
    *,
    mask: Bool[Array, "B T"] | None,
) -> tuple[Float[Array, "B M H Dv"], Float[Array, "B M H"], Float[Array, "B M H"]]:
    """Landmarks attend to tokens: the product kernel_3 @ value, not yet normalised.

        kernel_3 = softmax(q_landmarks keyᵀ / √D)             (the paper's B, Eq. 13)
        kernel_3 @ value = values / sum

    Args:
      q_landmarks: Query landmarks.
      key: Must be finite everywhere, in padding too.
      value: Must be finite everywhere, in padding too.
      mask: True at real keys; None means that all are.

    Returns:
      `(values, maximum, sum)` in at least float32: Σ exp(logit − maximum) · value, the maximum of the
      logits, which carries no gradient, and Σ exp(logit − maximum). Triples of different parts of a
      sequence combine: scale values and sum by exp(maximum − the common maximum), then add. With no
      real key the maximum is `MASKED_LOGIT`, and such a part vanishes when combined with any other.

    Raises:
      ValueError: Shapes that do not fit, or types that are no floats.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 13.
    """
    _check_step("q_landmarks, key, value and mask", q_landmarks, key, value, mask)
    logits = scaled_logits(q_landmarks, key, mask)
    maximum = jax.lax.stop_gradient(logits.max(axis=-1))
    weights = jnp.exp(logits - maximum[..., None])
    values = weighted_values(weights, value)
    return values, maximum.swapaxes(1, 2), weights.sum(axis=-1).swapaxes(1, 2)


def distribute(
    query: Float[Array, "B L H D"],
    k_landmarks: Float[Array, "B M H D"],
    landmark_values: Float[Array, "B M H Dv"],
    *,
    landmark_mask: Bool[Array, "B M"] | None,
    value: Float[Array, "B L H Dv"] | None = None,
    conv_kernel: Float[Array, "H W"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
) -> Float[Array, "B L H Dv"]:
    """Tokens attend to landmarks, plus the convolution of the value.

        output = kernel_1 @ landmark_values + convolution(value, conv_kernel)
        kernel_1 = softmax(query k_landmarksᵀ / √D)           (the paper's F, Eq. 13)

    Args:
      query: Must be finite everywhere.
      k_landmarks: Key landmarks.
      landmark_values: pinv(kernel_2) @ kernel_3 @ value.
      landmark_mask: False at landmarks that no token stands behind; they get no weight.
      value: What the convolution reads; needed with `conv_kernel` only.
      conv_kernel: One kernel a head, W odd.
      mask: True where `value` is real; the convolution sees zeros elsewhere.

    Returns:
      The attention output in `query`'s dtype.

    Raises:
      ValueError: Shapes that do not fit, or types that are no floats.

    Source: Xiong et al. 2021, arXiv:2102.03902, Eq. 13–17.
    """
    names = "query, k_landmarks, landmark_values and landmark_mask"
    _check_step(names, query, k_landmarks, landmark_values, landmark_mask)
    logits = scaled_logits(query, k_landmarks, landmark_mask)
    weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True)))
    # Normalised after the product: dividing L × D numbers is cheaper than dividing L × M.
    output = weighted_values(weights, landmark_values.astype(query.dtype))
    output = output / weights.sum(axis=-1).swapaxes(1, 2)[..., None]
    output = output.astype(query.dtype)
    if conv_kernel is None:
        return output
    if value is None:
        raise ValueError("distribute needs `value` when `conv_kernel` is given.")
    if value.shape != output.shape or (mask is not None and mask.shape != value.shape[:2]):
        raise ValueError(
            f"distribute adds the convolution of value {output.shape} under a mask {value.shape[:2]};"
            f" got {value.shape} and {None if mask is None else mask.shape}."
        )
    if mask is not None:
        value = jnp.where(mask[..., None, None], value, 0)
    return output + depthwise_convolution(value, conv_kernel).astype(query.dtype)


def _check_step(names: str, query: Array, key: Array, value: Array, mask: Array | None) -> None:
    """Refuses what asks, what is asked and what is answered where they do not fit, in words."""
    arrays = (query, key, value)
    shapes = [x.shape for x in arrays]
    fit = (
        all(len(shape) == 4 and 0 not in shape for shape in shapes)
        and query.shape[:1] + query.shape[2:] == key.shape[:1] + key.shape[2:]
        and key.shape[:3] == value.shape[:3]
        and all(jnp.issubdtype(x.dtype, jnp.floating) for x in arrays)
        and (mask is None or (mask.shape == key.shape[:2] and mask.dtype == jnp.bool_))
    )
    if not fit:
        got = [f"{x.shape} of {x.dtype}" for x in (*arrays, mask) if x is not None]
        raise ValueError(
            f"{names} must be [B L H D], [B T H D] and [B T H Dv] of floating-point types and boolean"
            f" [B T] or None; got {', '.join(got)}."
        )


def landmark_kernel(
    q_landmarks: Float[Array, "B M H D"],
    k_landmarks: Float[Array, "B M H D"],
    q_alive: Bool[Array, "B M"],
    k_alive: Bool[Array, "B M"],
) -> Float[Array, "B H M M"]:
    """kernel_2 in at least float32; rows and columns of dead landmarks are zero.

    Zeros stay zero through the pseudoinverse. Unit rows, as an identity would have them, are wrong
    where live keys outnumber live queries.
    """
    dtype = jnp.promote_types(q_landmarks.dtype, jnp.float32)
    logits = scaled_logits(
        q_landmarks.astype(dtype),
        k_landmarks.astype(dtype),
        k_alive,
        precision=jax.lax.Precision.HIGHEST,
    )
    alive = q_alive[:, None, :, None] & k_alive[:, None, None, :]
    return jnp.where(alive, jax.nn.softmax(logits, axis=-1), 0)


def scaled_logits(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B T H D"],
    mask: Bool[Array, "B T"] | None,
    *,
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, "B H L T"]:
    """Query · key / √D in at least float32, `MASKED_LOGIT` at keys that `mask` does not hold."""
    logits = jnp.einsum(
        "BLHD,BTHD->BHLT",
        query,
        key,
        precision=precision,
        preferred_element_type=jnp.promote_types(query.dtype, jnp.float32),
    )
    logits = logits * query.shape[-1] ** -0.5
    return logits if mask is None else jnp.where(mask[:, None, None, :], logits, MASKED_LOGIT)


def weighted_values(
    weights: Float[Array, "B H L T"], value: Float[Array, "B T H Dv"]
) -> Float[Array, "B L H Dv"]:
    """Weights @ value in at least float32; the weights are read in `value`'s precision."""
    return jnp.einsum(
        "BHLT,BTHD->BLHD",
        weights.astype(value.dtype),
        value,
        preferred_element_type=jnp.promote_types(value.dtype, jnp.float32),
    )
