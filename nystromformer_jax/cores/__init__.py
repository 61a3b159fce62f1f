"""One attention, one file, all under one call; `make_core` knows them by name.

A core is a small Module over the mathematics of attention:

    core(query, key, value, mask, query_mask, *, deterministic) -> output

with query `[B L H D]`, key and value `[B T H D]`, `mask` True at real keys `[B T]` and `query_mask`
True at real queries `[B L]` (None: the queries carry `mask`). A core whose attribute
`shares_query_and_key` is True attends with queries as keys and reads no key.

Randomness: what differs between calls comes from `make_rng("dropout")`; what is sampled once comes from
the attribute `seed`. So with `deterministic=True` every core is a pure function.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn

from nystromformer_jax.cores.linear import LinearAttention
from nystromformer_jax.cores.linformer import LinformerAttention
from nystromformer_jax.cores.longformer import LongformerAttention
from nystromformer_jax.cores.nystrom import NystromAttention
from nystromformer_jax.cores.performer import PerformerAttention
from nystromformer_jax.cores.reformer import ReformerAttention
from nystromformer_jax.cores.softmax import SoftmaxAttention
from nystromformer_jax.spelling import nearest

CORES: Mapping[str, type[nn.Module]] = {
    "linear": LinearAttention,
    "linformer": LinformerAttention,
    "longformer": LongformerAttention,
    "nystrom": NystromAttention,
    "performer": PerformerAttention,
    "reformer": ReformerAttention,
    "softmax": SoftmaxAttention,
}


def make_core(name: str, **options: Any) -> Callable[..., nn.Module]:
    """Gives a factory of cores; each layer calls it once and so owns its parameters.

    Args:
      name: One of `CORES`.
      **options: The core's attributes.

    Raises:
      ValueError: An unknown name or option, with the nearest known ones.
    """
    if name not in CORES:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, CORES)}")
    core = CORES[name]
    known = [
        field.name for field in dataclasses.fields(core) if field.name not in ("parent", "name")
    ]
    for option in options:
        if option not in known:
            raise ValueError(f"{name} attention has no option {option!r}{nearest(option, known)}")
    return functools.partial(core, **options)


__all__ = [
    "CORES",
    "LinearAttention",
    "LinformerAttention",
    "LongformerAttention",
    "NystromAttention",
    "PerformerAttention",
    "ReformerAttention",
    "SoftmaxAttention",
    "make_core",
]
