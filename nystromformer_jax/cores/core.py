"""The base class of attention cores."""

from typing import NamedTuple

import flax.linen as nn

from nystromformer_jax.typing import Array, Bool, Float


class Tokens(NamedTuple):
    """The arrays given to a core, named like the arguments of the attention functions."""

    query: Float[Array, "B L H D"]
    key: Float[Array, "B T H D"]
    value: Float[Array, "B T H D"]
    mask: Bool[Array, "B T"] | None
    query_mask: Bool[Array, "B L"] | None


class AttentionCore(nn.Module):
    """A small Module over an attention function, which its method `attend` calls.

    Any Module with the same `__call__` is a core; it need not be a subclass.

    A core with the attribute `shares_query_and_key` uses queries as keys and ignores `key`. A core with
    the attribute `reads_value_only` gets the value for all three, without projections of queries and
    keys. A core that draws random numbers per call takes them from `make_rng("dropout")`; what is
    sampled once depends on its attribute `seed`. With `deterministic=True` every core is a pure function.
    """

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
        """Attends; some cores support a length T that differs from L.

        Args:
          query: Queries.
          key: Keys.
          value: Values.
          mask: True at real keys; None means all are real.
          query_mask: True at real queries; None means that the queries use `mask`.
          deterministic: If True, nothing is dropped and nothing is redrawn.
        """
        tokens = Tokens(query, key, value, mask, query_mask)
        return self.attend(tokens, deterministic=deterministic)

    def attend(self, tokens: Tokens, *, deterministic: bool) -> Float[Array, "B L H D"]:
        """Returns the output of the core."""
        raise NotImplementedError
