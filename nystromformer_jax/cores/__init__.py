"""Attention cores with a common call signature; `make_core` creates them by name.

A name is a key of `CORES`, or `module:Class` for a class of another package.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from nystromformer_jax.cores.chunked import ChunkedAttention
from nystromformer_jax.cores.core import AttentionCore
from nystromformer_jax.cores.linear import LinearAttention
from nystromformer_jax.cores.linformer import LinformerAttention
from nystromformer_jax.cores.longformer import LongformerAttention
from nystromformer_jax.cores.none import NoAttention
from nystromformer_jax.cores.nystrom import NystromAttention
from nystromformer_jax.cores.performer import PerformerAttention
from nystromformer_jax.cores.reformer import ReformerAttention
from nystromformer_jax.cores.softmax import SoftmaxAttention
from nystromformer_jax.support.plugins import is_plugin, load_plugin
from nystromformer_jax.support.spelling import nearest

CORES: Mapping[str, type[AttentionCore]] = {
    "chunked": ChunkedAttention,
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
    """Creates cores of one class with fixed options.

    Factories with equal class and options are equal, so a Module that contains one can be a static
    argument of `jax.jit` without retracing.
    """

    core: type[nn.Module]
    options: tuple[tuple[str, Any], ...]  # sorted by name

    def __call__(self, **attributes: Any) -> nn.Module:
        """Returns a new core; `attributes` are Flax's Module attributes, such as `name`."""
        return self.core(**dict(self.options), **attributes)


def core_class(name: str) -> type[nn.Module]:
    """Returns the class of a core, given a name in `CORES` or `module:Class`.

    Raises:
      ValueError: The name is unknown, or the class is not a `flax.linen.Module`.
      ImportError: The module or the class does not exist, or the module raised an error.
    """
    if is_plugin(name):
        core: type = load_plugin(name, type, "a subclass of flax.linen.Module")
        if not issubclass(core, nn.Module):
            raise ValueError(f"{name} must be a subclass of flax.linen.Module.")
        return core
    if not isinstance(name, str) or name not in CORES:
        raise ValueError(f"Unknown attention {name!r}{nearest(str(name), CORES)}")
    return CORES[name]


def option_fields(core: type[nn.Module]) -> dict[str, dataclasses.Field]:
    """Returns the options of a core: the fields of its class, except those of every Module."""
    return {
        field.name: field
        for field in dataclasses.fields(core)
        if field.name not in ("parent", "name")
    }


def make_core(name: str, **options: Any) -> CoreFactory:
    """Returns a factory of cores, which each layer calls once to create a core.

    Args:
      name: `"nystrom"`, `"softmax"`, `"reformer"`, `"linformer"`, `"performer"`, `"longformer"`, `"linear"`,
        `"chunked"`, `"none"` (only the convolution of the value), or `"module:Class"` for a class of another
        package.
      **options: Attributes of the core: of `NystromAttention`, `SoftmaxAttention`, `ReformerAttention`,
        `LinformerAttention`, `PerformerAttention`, `LongformerAttention`, `LinearAttention`,
        `ChunkedAttention`, `NoAttention`, or the class of another package.

    Raises:
      ValueError: The name or an option is unknown (the message suggests similar names), a value is not
        hashable, or the class is not a `flax.linen.Module`.
      ImportError: The module or the class of `module:Class` does not exist, or the module raised an error.
    """
    core = core_class(name)
    known = option_fields(core)
    for option in ("causal", "is_causal"):
        if option in options and option not in known:
            raise ValueError(
                f"{name} attention has no option {option!r}: it supports only padding masks. Use"
                " jax.nn.dot_product_attention for causal attention."
            )
    for option in options:
        if option not in known:
            raise ValueError(f"{name} attention has no option {option!r}{nearest(option, known)}")
        try:
            hash(options[option])
        except TypeError:
            raise ValueError(
                f"{option} must be hashable, because a core may be a static argument of jax.jit; got"
                f" {options[option]!r:.80}. In place of a list, pass a tuple."
            ) from None
    return CoreFactory(core, tuple(sorted(options.items())))
