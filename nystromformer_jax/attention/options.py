"""The options of Nyström attention, with their defaults. Does not import jax: configs read them."""

import dataclasses
from typing import Any, TypedDict

from nystromformer_jax.support.spelling import nearest
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
    num_own_landmarks: int = 0
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
    num_own_landmarks: int
    mask_conv: bool
    normalize_rows: bool


DEFAULTS: dict[str, Any] = dataclasses.asdict(NystromOptions())
# Not in the config of a run of version 0.2.0.
NEWER = ("pinv", "num_own_landmarks", "mask_conv", "normalize_rows")


def options_of(carrier: Any) -> NystromOptions:
    """Returns the options among the attributes of a core or a config."""
    return NystromOptions(**{name: getattr(carrier, name) for name in DEFAULTS})


def read_options(function: str, options: OptionArguments) -> NystromOptions:
    """Returns the options given to a function, which a TypeError about another name names."""
    for name in options:
        if name not in DEFAULTS:
            hint = nearest(name, DEFAULTS)
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
    return NystromOptions(**options)


def is_default(key: str, value: Any) -> bool:
    """Returns True for the value of a config's dotted key with which a run of 0.2.0, which lacks it, began.

    That is the default of an option in `NEWER`, and 0, False, None or an empty value of any other key.
    """
    section, _, name = key.partition(".")
    return value == DEFAULTS[name] if section == "attention" and name in NEWER else not value
