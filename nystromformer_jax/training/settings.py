"""Strings stop at the door: a config section becomes a frozen dataclass, or one sentence says why not."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeVar, Union

from nystromformer_jax.spelling import nearest

__all__ = ["from_mapping", "read_sections"]

Section = TypeVar("Section")


def from_mapping(cls: type[Section], values: Mapping[str, Any], section: str) -> Section:
    """Builds the dataclass `cls` from `values`; `section` is what errors call it.

    An int is taken where a float is asked for, a list where a tuple is; a bool is never a number.

    Raises:
        ValueError: an unknown or missing key, or a value of the wrong type. One line.
    """
    dataclass: Any = cls  # a type variable cannot say that it is one
    known = dataclasses.fields(dataclass)
    fields = {field.name: field for field in known if field.init}
    for key in values:
        if key not in fields:
            raise ValueError(f"{section}.{key}: no such key{nearest(key, fields, f'{section}.')}")
    annotations = typing.get_type_hints(cls)
    for name, field in fields.items():
        required = (
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        )
        if required and name not in values:
            raise ValueError(f"{section}.{name}: missing; it needs {_describe(annotations[name])}.")
    return cls(
        **{
            key: _convert(value, annotations[key], f"{section}.{key}")
            for key, value in values.items()
        }
    )


def read_sections(
    config: Mapping[str, Any], kinds: Mapping[str, type], plain: Iterable[str] = ()
) -> dict[str, Any]:
    """Builds every section of a config by `from_mapping`.

    Args:
        config: Sections of plain values.
        kinds: The dataclass of each section.
        plain: Sections that must be there, too, and are not read here.

    Raises:
        ValueError: an unknown or missing section, and what `from_mapping` refuses.
    """
    known = [*kinds, *plain]
    for name in config:
        if name not in known:
            raise ValueError(f"{name}: no such section{nearest(name, known)}")
    for name in known:
        if name not in config:
            raise ValueError(f"{name}: this section is missing from the config.")
    return {name: from_mapping(kind, config[name], name) for name, kind in kinds.items()}


def _convert(value: Any, annotation: Any, where: str) -> Any:
    """Returns `value` as `annotation` asks for it, or raises in one sentence."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        if len(inner) == 1:
            return _convert(value, inner[0], where)
        for argument in inner:
            try:
                return _convert(value, argument, where)
            except ValueError:
                continue
    elif origin is Literal:
        # 1 == True == 1.0, so the type is compared as well.
        if any(type(value) is type(choice) and value == choice for choice in arguments):
            return value
        if isinstance(value, str):
            hint = nearest(value, [choice for choice in arguments if isinstance(choice, str)])
            raise ValueError(f"{where}: {value!r} is no choice{hint}")
    elif origin is tuple and isinstance(value, (tuple, list)):
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(value)
        if len(arguments) == len(value):
            pairs = enumerate(zip(value, arguments, strict=True))
            return tuple(_convert(item, kind, f"{where}[{i}]") for i, (item, kind) in pairs)
    elif annotation is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if not math.isfinite(value):
                raise ValueError(f"{where}: needs a finite number, got {value!r}.")
            return float(value)
    elif annotation is int:
        if isinstance(value, int) and not isinstance(value, bool):
            if not -(2**32) <= value <= 2**32:  # no size, count or seed is; arrays cannot hold it
                raise ValueError(f"{where}: needs a number within ±2**32, got {value}.")
            return value
    elif annotation in (bool, str) and isinstance(value, annotation):
        return value
    raise ValueError(
        f"{where}: needs {_describe(annotation)}, got {value!r} ({type(value).__name__})."
    )


def _describe(annotation: Any) -> str:
    """Says in words what a value of `annotation` is."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return f"one of {', '.join(map(repr, arguments))}"
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(argument) for argument in arguments)
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return f"a tuple of {_describe(arguments[0]).split()[-1]}s"
        inside = ", ".join(_describe(argument).split()[-1] for argument in arguments)
        return f"a tuple ({inside})"
    names = {int: "an int", float: "a float", bool: "a bool", str: "a str", type(None): "None"}
    return names.get(annotation, str(annotation))
