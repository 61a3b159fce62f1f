"""Moving averages in chunks and by FFT, as rows of the tables."""

import flax.linen as nn
import jax.numpy as jnp

from nystromformer_jax import multi_scale_ema
from nystromformer_jax.typing import Array, Float

STATES = 16  # N, as in recipe=mega
NAMES = ("ema", "ema-fft")


def fft_ema(
    x: Float[Array, "B L C"], time_scales: Float[Array, "2 C N"], weights: Float[Array, "2 C N"]
) -> Float[Array, "B L C"]:
    """Computes `multi_scale_ema` as one convolution with a kernel as long as the sequence."""
    length = x.shape[1]
    lags = jnp.arange(length)[None, None, None]
    past, future = (weights[..., None] * jnp.exp(-lags / time_scales[..., None])).sum(axis=2)
    kernel = jnp.concatenate(
        [past[:, :1] + future[:, :1], past[:, 1:], jnp.zeros((len(past), 1)), future[:, :0:-1]], 1
    )
    spectrum = jnp.fft.rfft(x, 2 * length, axis=1) * jnp.fft.rfft(kernel).T[None]
    return jnp.fft.irfft(spectrum, 2 * length, axis=1)[:, :length]


class Averages(nn.Module):
    """Moving averages with time scales around 2 to 1,024 tokens."""

    by_fft: bool

    @nn.compact
    def __call__(self, x: Float[Array, "B L C"], *, deterministic: bool) -> Float[Array, "B L C"]:
        """Returns the averages in the dtype of `x`."""
        shape = (2, x.shape[-1], STATES)
        change = self.param("time_scale", nn.initializers.zeros_init(), shape)
        weights = self.param("weight", nn.initializers.ones_init(), shape)
        time_scales = jnp.geomspace(2, 1024, STATES)[None, None] * jnp.exp(change)
        average = fft_ema if self.by_fft else multi_scale_ema
        return average(x.astype(jnp.float32), time_scales, weights).astype(x.dtype)
