"""Files: config.json and safetensors, read with sentences for errors and written whole or not at all."""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from nystromformer_jax.durable import read_json, written

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TORCH_WEIGHTS = "pytorch_model.bin"
INDEX = ".index.json"  # behind the name of weights that lie in several files

_DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": jnp.bfloat16,
    "F8_E4M3": jnp.float8_e4m3fn,
    "F8_E5M2": jnp.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read_config_file(folder: Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
      FileNotFoundError: There is none.
      ValueError: It is no JSON object.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} to read a model from.")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} holds no {CONFIG}, which a model's folder needs beside its weights."
        )
    return read_json(folder / CONFIG)


def read_weights(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """All tensors of the folder's safetensors, in one file or several.

    Raises:
      FileNotFoundError: No such file, or one of several is missing.
      ValueError: A file is damaged.
      ImportError: Without the package safetensors.
    """
    if (folder / WEIGHTS).is_file():
        return read_safetensors(folder / WEIGHTS)
    if (folder / (WEIGHTS + INDEX)).is_file():
        tensors: dict[str, npt.NDArray[Any]] = {}
        for path in shards(folder / (WEIGHTS + INDEX)):
            tensors |= read_safetensors(path)
        return tensors
    for name in (TORCH_WEIGHTS, TORCH_WEIGHTS + INDEX):
        if (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} holds no {WEIGHTS}, only {name}: run python -m"
                f" nystromformer_jax.pretrained convert {folder} DEST, and load DEST."
            )
    raise FileNotFoundError(f"{folder} holds no weights: neither {WEIGHTS} nor {WEIGHTS}{INDEX}.")


def shards(index: Path) -> list[Path]:
    """The files of weights that lie in several.

    Raises:
      FileNotFoundError: One of them is missing.
      ValueError: The index names no files, or some elsewhere.
    """
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index} has no weight_map, which says where each tensor lies.")
    paths = []
    for name in sorted({str(name) for name in names.values()}):
        if Path(name).name != name:
            raise ValueError(f"{index} names the file {name!r}; it must lie in the same folder.")
        if not (index.parent / name).is_file():
            raise FileNotFoundError(
                f"{index.parent} lacks {name}, which {index.name} names: download it again."
            )
        paths.append(index.parent / name)
    return paths


def read_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The tensors of one file, in the types they have there.

    Raises:
      ValueError: A damaged file, or a type that no model's weights have.
      ImportError: Without the package safetensors.
    """
    safetensors = _safetensors()
    try:
        found = safetensors.deserialize(path.read_bytes())
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is cut short or damaged ({error}): download it again.") from None
    tensors = {}
    for name, entry in found:
        if entry["dtype"] not in _DTYPES:
            raise ValueError(f"{path} holds {name} in {entry['dtype']}, which is no plain type.")
        flat = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]
) -> None:
    """Writes config.json and model.safetensors; both are whole before either gets its name.

    Raises:
      FileExistsError: `folder` is a file.
      ImportError: Without the package safetensors.
    """
    _safetensors()  # before there is a folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FileExistsError(f"{folder} cannot be a folder: a file is in its place.") from None
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    with contextlib.ExitStack() as stack:
        replace = [
            stack.enter_context(written(folder / name, write))
            for name, write in (
                (WEIGHTS, lambda path: _save(tensors, path)),
                (CONFIG, lambda path: path.write_text(text, encoding="utf-8")),
            )
        ]
        for give_name in replace:
            give_name()


def _save(tensors: Mapping[str, npt.NDArray[Any]], path: Path) -> None:
    """What the system says of the disk is an OSError, as from everybody else."""
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
