"""Loads attentions and tasks of other packages, named `module:name`. Does not import jax."""

import hashlib
import importlib
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import Any

from nystromformer_jax.support.spelling import nearest


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
      ValueError: The module or the object does not exist, or the object is not a `kind`.
      ImportError: The module raised an error; the message contains that error and its line.
    """
    path, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), attribute]):
        raise ValueError(f"{name!r} is not of the form module:name, such as my_package.mine:Mine.")
    module = _import(path)
    if not hasattr(module, attribute):
        known = [
            found
            for found, value in vars(module).items()
            if isinstance(value, kind) and not found.startswith("_")
        ]
        raise ValueError(f"{path} has no {attribute!r}{nearest(attribute, known)}")
    found = getattr(module, attribute)
    if not isinstance(found, kind):
        raise ValueError(f"{name} must be {description}, not {found!r}.")
    return found


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


def _import(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise _of_module(path, error) from error
        parent, _, missing = error.name.rpartition(".")
        if not parent:
            raise ValueError(
                f"No module {missing!r} to import {path} from: install its package, or add its folder"
                " to PYTHONPATH."
            ) from None
        if parent not in sys.modules:  # the package itself raised the error
            raise _of_module(path, error) from error
        package = getattr(sys.modules[parent], "__path__", [])
        known = [module.name for module in pkgutil.iter_modules(package)]
        raise ValueError(f"{parent} has no module {missing!r}{nearest(missing, known)}") from None
    except Exception as error:
        raise _of_module(path, error) from error


def _of_module(path: str, error: Exception) -> ImportError:
    """Returns an ImportError with the message and the place of an error that a module raised."""
    message = f"{type(error).__name__}: {' '.join(str(error).split())}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    at = "" if isinstance(error, SyntaxError) else f" ({place.filename}, line {place.lineno})"
    return ImportError(f"{path} cannot be imported: {message}{at}")
