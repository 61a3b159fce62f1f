"""Reads config.json and weights, and atomically writes config.json and model.safetensors."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from nystromformer_jax.pretrained.names import Tensors
from nystromformer_jax.support.durable import read_json, write_files

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TORCH_WEIGHTS = "pytorch_model.bin"
INDEX = ".index.json"  # suffix of the index of sharded weights


def read_config_file(folder: Path) -> dict[str, Any]:
    """Returns the content of config.json; raises FileNotFoundError if it is missing."""
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder / CONFIG} does not exist: pass the folder of a model, which has one."
        )
    return read_json(folder / CONFIG)


def read_weights(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns all tensors of a folder, from safetensors files if there are any, else from pickles."""
    paths = weight_files(folder)
    if not paths:
        raise FileNotFoundError(
            f"{folder} contains no weights: neither {WEIGHTS} nor {TORCH_WEIGHTS}, nor the {INDEX} file of"
            " sharded weights."
        )
    tensors: dict[str, npt.NDArray[Any]] = {}
    for path in paths:
        tensors |= (_read_safetensors if path.suffix == ".safetensors" else read_torch)(path)
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """Returns the weight files of a folder, sharded or not; an empty list if there are none."""
    for name in (WEIGHTS, TORCH_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / (name + INDEX)
        if not index.is_file():
            continue
        shards = read_json(index).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ValueError(f"{index} needs a weight_map, which gives the file of each tensor.")
        names = sorted(map(str, set(shards.values())))
        if outside := [name for name in names if Path(name).name != name]:
            raise ValueError(f"{index} lists {outside[0]!r}; it must be in the same folder.")
        return [folder / name for name in names]
    return []


def _read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of a safetensors file in their stored dtypes; jax registers bfloat16."""
    safetensors = _safetensors()
    try:
        return safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, AttributeError) as error:  # AttributeError: unknown dtype
        raise ValueError(
            f"{path} is truncated, corrupt or of an unsupported dtype ({error}): download it again."
        ) from None


def read_torch(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of a pickled state dict, or of a checkpoint that contains one.

    Floats are converted to float32. Code in the pickle is never executed.

    Raises:
      FileNotFoundError: The file is missing.
      ValueError: The file is corrupt, contains unsupported objects, or contains no tensors.
      ImportError: The package torch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{path} was written by PyTorch, and the package torch is not installed: pip install"
            ' torch, or the extra "peers".'
        ) from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError, MemoryError):
        raise
    except Exception:  # torch raises many types of errors for invalid files
        raise ValueError(
            f"{path} is not a PyTorch checkpoint, is corrupt, or contains more than tensors and plain values,"
            " which cannot be read without executing it."
        ) from None
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = {
        str(name): (tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
        for name, tensor in (found.items() if isinstance(found, dict) else ())
        if isinstance(tensor, torch.Tensor)
    }
    if not tensors:
        raise ValueError(f"{path} contains no state dict, which maps names to tensors.")
    return tensors


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    """Writes config.json and model.safetensors; replaces old files only after both are complete."""
    content = {
        WEIGHTS: _safetensors().numpy.save(dict(tensors), metadata={"format": "pt"}),
        CONFIG: (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_files(
        {folder / name: partial(Path.write_bytes, data=data) for name, data in content.items()}
    )


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError(
            "Checkpoints are safetensors files, and the package safetensors is not installed:"
            ' pip install safetensors, or the extra "language".'
        ) from None
    return safetensors
