"""Imports the scripts of `examples/`, which is not a package."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "examples"


def load(name):
    """Returns the script as a module; flax looks up the modules of its Modules, so it is registered."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
