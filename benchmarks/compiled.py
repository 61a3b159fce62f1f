"""Programs compiled ahead of time for one device. Compiling for a TPU needs no TPU."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from nystromformer_jax.training.plan import Program, compile_program


def compile_ahead(function: Callable[..., Any], arguments: Any, device: jax.Device) -> Program:
    """Compiles `function` for one device, for arguments with the shapes and dtypes of `arguments`.

    It is traced for the device, so it uses the implementations for it.
    """
    mesh = Mesh(np.array([device]), ("data",)).abstract_mesh

    @functools.wraps(function)
    def traced(*arrays: Any) -> Any:
        with jax.sharding.use_abstract_mesh(mesh):
            return function(*arrays)

    sharding = SingleDeviceSharding(device)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), arguments
    )
    return compile_program(jax.jit(traced).lower(*shapes), device)
