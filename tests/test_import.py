"""Importing the library needs jax, flax and jaxtyping, and wakes nothing."""

import os
import subprocess
import sys

import pytest

HEAVY = [
    "chex",
    "grain",
    "matplotlib",
    "ml_collections",
    "optax",
    "orbax",
    "safetensors",
    "tensorboardX",
    "tensorflow",
    "tensorflow_datasets",
    "torch",
]


@pytest.mark.parametrize("package", ["nystromformer_jax", "nystromformer_jax.cores"])
def test_importing_the_library_loads_nothing_heavy_and_starts_no_backend(package):
    program = f"""
import sys
import {package}
from jax._src import xla_bridge
print([name for name in {HEAVY} if name in sys.modules])
print(xla_bridge.backends_are_initialized())
"""
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    printed = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    ).stdout.split("\n")
    assert printed[:2] == ["[]", "False"]


def test_all_public_names_exist():
    import nystromformer_jax

    assert all(hasattr(nystromformer_jax, name) for name in nystromformer_jax.__all__)
