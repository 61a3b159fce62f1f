"""Importing the library needs jax, flax and jaxtyping, and initializes no device."""

import pytest

from tests.programs import finish, start

HEAVY = ["chex", "grain", "matplotlib", "ml_collections", "optax", "orbax", "safetensors"]
HEAVY += ["tensorboardX", "tensorflow", "tensorflow_datasets", "torch", "transformers"]


def test_importing_the_library_loads_nothing_heavy_and_starts_no_backend():
    program = f"""
import sys
import nystromformer_jax.cores
import nystromformer_jax.pretrained
from jax._src import xla_bridge
print([name for name in {HEAVY} if name in sys.modules])
print(xla_bridge.backends_are_initialized())
"""
    answer = finish(start("-c", program))
    assert answer.output.split("\n")[:2] == ["[]", "False"], answer.errors


def test_a_config_and_its_schema_load_no_jax():
    program = """
import sys
import nystromformer_jax.training.config
from configs import glue, listops, pretrain
for config in (glue, listops, pretrain):
    config.get_config()
print([name for name in ("jax", "flax", "optax", "orbax", "grain") if name in sys.modules])
"""
    answer = finish(start("-c", program))
    assert answer.output == "[]\n", answer.errors


@pytest.mark.parametrize(
    ("package", "missing"), [("nystromformer_jax.training", "orbax"), ("lra.report", "tqdm")]
)
def test_package_names_the_extra_that_it_needs(package, missing):
    program = f"""
import sys
sys.modules["{missing}"] = None  # as if it were not installed
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "{missing}" else found(name)
import {package}
"""
    answer = finish(start("-c", program))
    assert f"needs {missing}, not installed here" in answer.errors
    assert "[lra]" in answer.errors


def test_program_names_the_extra_that_it_needs():
    code = "import sys; sys.modules['ml_collections'] = None; sys.argv = ['it']; import run_sweep"
    answer = finish(start("-c", code))
    assert (answer.code, answer.output) == (2, "")
    assert answer.errors.startswith("it needs ml_collections, not installed here.")
