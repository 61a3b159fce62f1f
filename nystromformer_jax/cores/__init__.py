"""Attention cores, one per file, with one call signature; `make_core` makes them by name."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import flax.linen as nn

from nystromformer_jax.cores.linear import LinearAttention
from nystromformer_jax.cores.linformer import LinformerAttention
from nystromformer_jax.cores.longformer import LongformerAttention
from nystromformer_jax.cores.none import NoAttention
from nystromformer_jax.cores.nystrom import NystromAttention
from nystromformer_jax.cores.performer import PerformerAttention
from nystromformer_jax.cores.reformer import ReformerAttention
from nystromformer_jax.cores.softmax import SoftmaxAttention
from nystromformer_jax.spelling import nearest
from nystromformer_jax.typing import Array, Bool, Float


class AttentionCore(Protocol):
    """The call signature of a core: a small Module over an attention function.

    A core with the attribute `shares_query_and_key` uses queries as keys and ignores `key`. A core with
    the attribute `reads_value_only` gets the value for all three, without projections of queries and
    keys. A core that draws random numbers per call takes them from `make_rng("dropout")`; what is
    sampled once depends on its attribute `seed`. With `deterministic=True` every core is a pure function.
    """

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
        """Attends.

        Args:
          query: Queries.
          key: Keys; some cores support a length T that differs from L.
          value: Values.
          mask: True at real keys; None means all are real.
          query_mask: True at real queries; None means that the queries use `mask`.
          deterministic: If True, nothing is dropped and nothing is redrawn.
        """
        ...


CORES: Mapping[str, type[nn.Module]] = {
    "linear": LinearAttention,
    "linformer": LinformerAttention,
    "longformer": LongformerAttention,
    "none": NoAttention,
    "nystrom": NystromAttention,
    "performer": PerformerAttention,
    "reformer": ReformerAttention,
    "softmax": SoftmaxAttention,
}


@dataclasses.dataclass(frozen=True)
class CoreFactory:
    """Makes cores of one class with the same options.

    Factories with equal class and options are equal, so a module that holds one can be a static argument
    of `jax.jit` without being retraced.
    """

    core: type[nn.Module]
    options: tuple[tuple[str, Any], ...]  # sorted by name

    def __call__(self, **attributes: Any) -> nn.Module:
        """Returns a new core; `attributes` are flax's own, such as `name`."""
        return self.core(**dict(self.options), **attributes)


def make_core(name: str, **options: Any) -> CoreFactory:
    """Returns a factory of cores; each layer calls it once and owns the core's parameters.

    Args:
      name: One of `CORES`.
      **options: The core's attributes.

    Raises:
      ValueError: The name or an option is unknown; the message suggests the nearest known ones.
    """
    if not isinstance(name, str) or name not in CORES:
        raise ValueError(f"Unknown attention {name!r}{nearest(str(name), CORES)}")
    for option in ("causal", "is_causal"):
        if option in options:
            raise ValueError(
                f"{name} attention has no option {option!r}: landmarks, projections and buckets mix all"
                " tokens, so these cores cannot be causal. Use jax.nn.dot_product_attention."
            )
    core = CORES[name]
    known = [
        field.name for field in dataclasses.fields(core) if field.name not in ("parent", "name")
    ]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} attention has no option {option!r}{nearest(option, known)}")
    return CoreFactory(core, tuple(sorted(options.items())))
