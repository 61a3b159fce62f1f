"""The base class of attention cores."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from nystromformer_jax.typing import Array, Bool, Float


class CoreInputs(NamedTuple):
    """The array arguments of a core, named as in the attention functions."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B T H D"]
    value: Float[Array, "B T H D"]
    mask: Bool[Array, "B T"] | None
    query_mask: Bool[Array, "B L"] | None


class AttentionCore(nn.Module):
    """Base class of cores; the method `attend` calls an attention function.

    Any Module with the same `__call__` is a core, even if it is not a subclass.

    A core with the attribute `shares_query_and_key` uses queries as keys and ignores `key`. A core with
    the attribute `reads_value_only` has no query and key projections and gets the projected value as all
    three. Random numbers that differ between calls come from `make_rng("dropout")`. Those that stay the same
    depend on the attributes `seed` and `layer_name`, by default the core's path. With `deterministic=True`
    every core is a pure function.
    """

    @property
    def needs_dropout_rng(self) -> bool:
        """True if calls that are not deterministic use the stream "dropout"; a core may override it."""
        return False

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
        """Returns the attention output; only some cores support T ≠ L.

        Args:
          query: Queries.
          key: Keys.
          value: Values.
          mask: True at real keys; None means all are real.
          query_mask: True at real queries; None means that the queries use `mask`.
          deterministic: If True, dropout and redrawing of random features are disabled.
        """
        arrays = (query, key, value, mask, query_mask)
        # Only NumPy arrays are converted, so that `attend` can reject lists and tensors of other libraries.
        inputs = CoreInputs._make(
            jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arrays
        )
        return self.attend(inputs, deterministic=deterministic)

    def attend(self, inputs: CoreInputs, *, deterministic: bool) -> Float[Array, "B L H D"]:
        """Returns the attention output for `inputs`."""
        name = type(self).__name__
        raise NotImplementedError(f"{name} must define `attend`.")  # Flax's Module has no ABCMeta
