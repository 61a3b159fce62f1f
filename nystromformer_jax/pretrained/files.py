"""Reads config.json and weights, and atomically writes config.json and safetensors files."""

import json
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nystromformer_jax.support.durable import read_json, write_files

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TORCH_WEIGHTS = "pytorch_model.bin"
INDEX = ".index.json"  # suffix of the index of sharded weights

_DTYPES: dict[str, Any] = {
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "BOOL": np.bool_,
    **{f"F{8 * size}": f"f{size}" for size in (2, 4, 8)},
    **{f"{kind.upper()}{8 * size}": f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)},
}


def read_config_file(folder: Path) -> dict[str, Any]:
    """Returns the content of config.json; raises FileNotFoundError if it is missing."""
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"{folder} {what}: pass the folder of a model.")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} contains no {CONFIG}, which the folder of a model must have."
        )
    return read_json(folder / CONFIG)


def check_is_model(raw: Mapping[str, Any], folder: Path) -> None:
    """Raises ValueError if a config.json belongs to a training run instead of a model."""
    if "model_type" in raw or not raw.keys() >= {"data", "model", "optimizer", "train"}:
        return
    if (folder / "model" / CONFIG).is_file():
        raise ValueError(
            f"{folder} is the folder of a run, not of a model: pass {folder / 'model'}, where the"
            " run wrote its model."
        )
    raise ValueError(
        f"{folder} is the folder of a run, not of a model, and has no subfolder model. Only finished"
        " runs of run_pretrain.py and run_finetune.py have one."
    )


def read_weights(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns all tensors of a folder, from safetensors files if there are any, else from pickles."""
    paths = weight_files(folder)
    if not paths:
        raise FileNotFoundError(
            f"{folder} contains no weights: neither {WEIGHTS} nor {TORCH_WEIGHTS}, nor the {INDEX} file of"
            " sharded weights."
        )
    return read_tensors(paths)


def weight_files(folder: Path) -> list[Path]:
    """Returns the weight files of a folder, sharded or not; an empty list if there are none."""
    for name in (WEIGHTS, TORCH_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
        if (folder / (name + INDEX)).is_file():
            return _shards(folder / (name + INDEX))
    return []


def read_tensors(paths: Sequence[Path]) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of safetensors files, or of files pickled by PyTorch."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    for path in paths:
        read = _read_safetensors if path.suffix == ".safetensors" else read_torch
        tensors |= read(path)
    return tensors


def _shards(index: Path) -> list[Path]:
    """Returns the paths of the shards listed in an index file."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index} needs a weight_map, which gives the file of each tensor.")
    paths = []
    for name in sorted({str(name) for name in names.values()}):
        if Path(name).name != name:
            raise ValueError(f"{index} lists the file {name!r}; it must be in the same folder.")
        if not (index.parent / name).is_file():
            raise FileNotFoundError(
                f"{index.parent} lacks {name}, which is listed in {index.name}: download it again."
            )
        paths.append(index.parent / name)
    return paths


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
    if not path.is_file():
        raise FileNotFoundError(f"File {path} does not exist.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is not a PyTorch checkpoint, is corrupt, or contains more than tensors and plain values,"
            " which cannot be read without executing it."
        ) from None
    except PermissionError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError):
        raise ValueError(f"{path} is truncated or corrupt: download it again.") from None
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = {}
    for name, tensor in found.items() if isinstance(found, dict) else ():
        if isinstance(tensor, torch.Tensor):
            plain = tensor.detach()
            tensors[str(name)] = (plain.float() if plain.is_floating_point() else plain).numpy()
    if not tensors:
        raise ValueError(f"{path} contains no state dict, which maps names to tensors.")
    return tensors


def _read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Returns the tensors of one safetensors file in their stored dtypes."""
    safetensors = _safetensors()
    try:
        entries = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is truncated or corrupt ({error}): download it again.") from None
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{path} contains {name} in {entry['dtype']}, an unsupported dtype.")
        flat = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Writes config.json and model.safetensors; replaces old files only after both are complete."""
    _safetensors()  # before the folder is created
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(
            f"{folder} must be a folder, but it or one of its parents is a file: pass another folder."
        ) from None
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    write_files(
        {
            folder / WEIGHTS: lambda path: _save(tensors, path),
            folder / CONFIG: lambda path: path.write_text(text, encoding="utf-8"),
        }
    )


def _save(tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """Writes a safetensors file; raises OSError for errors of the file system."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(dict(tensors), path, metadata={"format": "pt"})
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError:
        raise ImportError(
            "Checkpoints are safetensors files, and the package safetensors is not installed:"
            ' pip install safetensors, or the extra "language".'
        ) from None
    return safetensors
