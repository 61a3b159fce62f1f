"""Converts checkpoints of other implementations to folders that `from_pretrained` reads."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer_jax.pretrained import authors, files
from nystromformer_jax.pretrained.config_json import Source, read_source
from nystromformer_jax.pretrained.folder import make_model, save_pretrained
from nystromformer_jax.pretrained.names import ModelClass
from nystromformer_jax.pretrained.tensors import read_params
from nystromformer_jax.support.durable import read_json, write_files

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
TORCH_SUFFIXES = (".bin", ".cp", ".model", ".pt", ".pth")


def convert(
    source: Path, dest: Path, *, model_class: ModelClass | None = None, **changes: Any
) -> tuple[Any, Source]:
    """Converts a checkpoint and its tokenizer to the folder `dest`; returns the model and its source.

    `source` is a folder that `from_pretrained` reads, or a pickled file of the authors' code or its folder,
    with config.json in that folder or the one above. `dest` must be missing or empty. `model_class` and
    `changes` are passed to `from_pretrained`.

    Raises:
      FileNotFoundError, ValueError, ImportError: See `from_pretrained`; then nothing is written.
    """
    folder = source if source.is_dir() else source.parent
    parent = folder.resolve().parent  # location of config.json in the authors' folders
    from_parent = (parent / files.CONFIG).is_file() and not (folder / files.CONFIG).is_file()
    if dest.resolve() == folder.resolve() or (dest.resolve() == parent and from_parent):
        raise ValueError(f"{dest} contains the source: pass another destination.")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ValueError(f"{dest} exists and is not an empty folder: pass another destination.")
    found, tensors = _read(source)
    model = make_model(found, model_class, "none", changes)
    params = read_params(model, found, tensors, other_labels="num_labels" in changes)
    del tensors
    max_len = model.config.max_len
    new_length = max_len if max_len != found.fields["max_len"] else None
    contents = {
        name: _tokenizer_file(folder / name, new_length)
        for name in TOKENIZER_FILES
        if (folder / name).is_file()
    }
    save_pretrained(dest, model, {"params": params})
    write_files(
        {dest / name: partial(Path.write_bytes, data=data) for name, data in contents.items()}
    )
    return model, found


def _tokenizer_file(path: Path, max_len: int | None) -> bytes:
    """Returns the content of a tokenizer file, with the maximum length `max_len` unless it is None."""
    keys = {
        "tokenizer_config.json": ("model_max_length", "max_len"),
        "tokenizer.json": ("max_length",),
    }
    if max_len is not None and path.name in keys:
        values = read_json(path)
        holder = values if "config" in path.name else values.get("truncation") or {}
        lengths = {key: max_len for key in keys[path.name] if key in holder}
        if lengths:
            holder.update(lengths)
            return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
    return path.read_bytes()


def _read(source: Path) -> tuple[Source, dict[str, Any]]:
    """Returns the description and the tensors of a checkpoint."""
    if not source.exists():
        raise FileNotFoundError(
            f"{source} does not exist: pass the file or folder of a checkpoint."
        )
    if source.is_file() and source.suffix == ".safetensors":
        raise ValueError(
            f"{source} is only one file of a model: convert the folder {source.parent}."
        )
    if source.is_dir() and (source / files.CONFIG).is_file():
        files.check_is_model(files.read_config_file(source), source)
    paths = [source]
    if source.is_dir():
        paths = files.weight_files(source) or [_only_pickle(source)]
    folder = paths[0].parent
    config = next((d for d in (folder, folder.parent) if (d / files.CONFIG).is_file()), None)
    if config is None:
        raise FileNotFoundError(
            f"{paths[0]} needs the {files.CONFIG} of its model, in the same folder or the one above."
        )
    raw = files.read_config_file(config)
    tensors = files.read_tensors(paths)
    if "model_type" in raw:
        return read_source(raw, source, lambda: tensors), tensors
    return authors.read_authors_source(raw, tensors, source)


def _only_pickle(folder: Path) -> Path:
    """Returns the only file in a folder that PyTorch pickled; raises an error if there is none or several."""
    paths = sorted(path for path in folder.iterdir() if path.suffix in TORCH_SUFFIXES)
    paths = [path for path in paths if path.is_file() and path.name not in TOKENIZER_FILES]
    paths = [path for path in paths if not path.name.startswith(".")]
    if not paths:
        raise FileNotFoundError(
            f"{folder} contains no weights: neither {files.WEIGHTS} nor {files.TORCH_WEIGHTS} nor"
            f" another file ending in {', '.join(TORCH_SUFFIXES)}."
        )
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"{folder} contains several checkpoints ({names}): pass one of them.")
    return paths[0]
