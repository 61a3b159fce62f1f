"""A function together with its gradient."""

from collections.abc import Callable
from typing import Any

import jax


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function `(*arguments, cotangent) -> (output, cotangents of all arguments)`."""

    def run(*arguments: Any) -> tuple[Any, Any]:
        *inputs, cotangent = arguments
        output, pull_back = jax.vjp(function, *inputs)
        return output, pull_back(cotangent)

    return run
