"""Loads attentions and tasks of other packages, named `module:name`. Does not import jax."""

import hashlib
import importlib
import traceback
from pathlib import Path
from typing import Any


def is_plugin(name: object) -> bool:
    """Returns True for a name in another package, such as "my_package.attention:CosFormer"."""
    return isinstance(name, str) and ":" in name


def short_name(name: str) -> str:
    """Returns the name without the module: "CosFormer"."""
    return name.rpartition(":")[2]


def load_plugin(name: str, kind: type, description: str) -> Any:
    """Imports a module and returns an object from it.

    Args:
      name: `module:name`.
      kind: The required type of the object.
      description: The required object in error messages, such as "a class".

    Raises:
      ImportError: The module or the object does not exist, or the module raised an error, which the message
        contains.
      ValueError: The object is not a `kind`.
    """
    path, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(path)
    except Exception as error:
        raise ImportError(f"{path} cannot be imported: {_reason(error, path)}") from error
    if not hasattr(module, attribute):
        raise ImportError(f"{path} has no {attribute!r}.")
    found = getattr(module, attribute)
    if not isinstance(found, kind):
        raise ValueError(f"{name} must be {description}, not {found!r}.")
    return found


def _reason(error: Exception, path: str) -> str:
    """Returns the message of an error at the import of a module, with its place or with advice."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    if isinstance(error, ModuleNotFoundError) and f"{path}.".startswith(f"{error.name}."):
        return f"{message}. Install its package, or add its folder to PYTHONPATH."
    if isinstance(error, SyntaxError):
        return message
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{message} ({place.filename}, line {place.lineno})"


def source_sha256(name: str) -> str:
    """Returns a hash of the source of the plug-in `module:name`: of all modules of its package, if any."""
    module = importlib.import_module(name.partition(":")[0])
    file = Path(str(module.__file__))
    package = file.parent if module.__package__ else file
    files = sorted(package.rglob("*.py")) if module.__package__ else [file]
    digest = hashlib.sha256()
    for found in files:
        digest.update(str(found.relative_to(package)).encode() + found.read_bytes())
    return digest.hexdigest()
