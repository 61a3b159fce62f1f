"""Where a core that samples (features, hashes) takes its random numbers from."""

import zlib

import flax.linen as nn
import jax

from nystromformer_jax.typing import Array


def sampling_rng(core: nn.Module, seed: int, *, redraw: bool) -> Array:
    """A key for what `core` samples.

    Args:
      core: Bound; its place in the model makes every layer sample for itself.
      seed: Of samples that stay: the same in every call, in training and evaluation alike.
      redraw: Whether to draw anew in this call, from the stream "dropout".
    """
    if redraw:
        return core.make_rng("dropout")
    place = "/".join(core.path)
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(place.encode()))
