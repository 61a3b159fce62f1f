"""Values of options: accepted names, and checks. Does not import jax: schemas of configs load fast."""

import contextlib
import numbers
from typing import Annotated, Any, Literal, get_args

import numpy as np

Implementation = Literal["auto", "xla", "pallas_tpu", "cudnn"]
Layout = Literal["real", "mlpen", "hf"]
Selection = Literal["segments", "kmeans"]
Pinv = Literal["iterative", "ridge"]
Start = Literal["exact", "batch_max"]
# "gelu" is the exact GELU of PyTorch and the authors; flax's default is "gelu_tanh".
Activation = Literal["gelu", "gelu_tanh", "relu", "tanh"]
EmaNormalization = Literal["mean", "variance"]
DtypeName = Literal["float32", "bfloat16"]
ConfigDtype = Annotated[Any, DtypeName]  # a dtype, stored as its name, as in a config file


def dtype_name(dtype: Any) -> str:
    """Returns "float32" or "bfloat16" for a dtype such as jnp.bfloat16, or for its name."""
    name: Any = dtype
    if dtype is not None and not isinstance(dtype, str):
        with contextlib.suppress(TypeError):  # not a dtype
            name = np.dtype(dtype).name
    check_choice("dtype", name, DtypeName)
    return str(name)


def check_choice(name: str, value: Any, literal: Any) -> None:
    """Raises ValueError unless `value` is one of the values of the type `literal`."""
    if value not in get_args(literal):
        known = ", ".join(map(repr, get_args(literal)))
        raise ValueError(f"{name} must be one of {known}, got {value!r}.")


def check_rate(name: str, rate: float) -> None:
    """Raises ValueError unless `rate`, a dropout rate, is at least 0 and below 1."""
    if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
        raise ValueError(f"{name} must be at least 0 and below 1, got {rate!r}.")


def check_size(name: str, size: int, least: int = 1) -> None:
    """Raises ValueError unless `size` is an integer of at least `least`."""
    if not is_integer(size) or size < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {size!r}.")


def is_integer(value: Any) -> bool:
    """Returns True for an int or a NumPy integer, and False for a bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
