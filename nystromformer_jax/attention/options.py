"""The options of Nyström attention, with their defaults. Does not import jax: configs read them."""

import dataclasses
from typing import Any, TypedDict

from nystromformer_jax.support.values import Layout, Pinv, Selection, Start


# Not frozen, because the class of the core inherits these fields, and Flax does not freeze its dataclasses.
@dataclasses.dataclass(kw_only=True, unsafe_hash=True)
class NystromOptions:
    """Options of Nyström attention; `nystrom_attention` describes them. They are constants in jit."""

    num_landmarks: int = 64
    pinv: Pinv = "iterative"
    pinv_iters: int = 6
    pinv_start: Start = "exact"
    landmark_layout: Layout = "real"
    landmark_selection: Selection = "segments"
    mask_conv: bool = True
    normalize_rows: bool = False


class OptionArguments(TypedDict, total=False):
    """The fields of `NystromOptions` as keyword arguments of a function, for type checkers."""

    num_landmarks: int
    pinv: Pinv
    pinv_iters: int
    pinv_start: Start
    landmark_layout: Layout
    landmark_selection: Selection
    mask_conv: bool
    normalize_rows: bool


DEFAULTS: dict[str, Any] = dataclasses.asdict(NystromOptions())


def options_of(carrier: Any) -> NystromOptions:
    """Returns the options among the attributes of a core or a config."""
    return NystromOptions(
        **{name: getattr(carrier, name) for name in DEFAULTS if hasattr(carrier, name)}
    )


def is_default(key: str, value: Any) -> bool:
    """Returns True for a config's key `attention.OPTION` with its default: older runs lack newer options."""
    section, _, name = key.partition(".")
    return section == "attention" and name in DEFAULTS and DEFAULTS[name] == value
