"""From whatever holds weights to a folder of ours."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from nystromformer_jax.durable import written
from nystromformer_jax.pretrained import authors, files
from nystromformer_jax.pretrained.folder import make_model, make_variables, save_pretrained
from nystromformer_jax.pretrained.names import Model
from nystromformer_jax.pretrained.source import Source, read_source

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)
TORCH_ENDINGS = (".bin", ".cp", ".model", ".pt", ".pth")

# Of a config.json, what is not the model's but goes with it; absent keys as transformers has them.
_TOKEN_IDS: Mapping[str, Mapping[str, int | None]] = {
    "nystromformer": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "bert": {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
}


def convert(
    source: Path, dest: Path, *, model_class: Model | None = None, **changes: Any
) -> tuple[Any, Source]:
    """Reads a checkpoint and writes it as `save_pretrained` does, with its tokenizer and labels.

    Args:
      source: A folder that `from_pretrained` reads, one with pytorch_model.bin in place of
        safetensors, or a pickled file of the authors' or a folder with one, config.json beside it
        or above.
      dest: Another folder.
      model_class: As in `from_pretrained`.
      **changes: As in `from_pretrained`.

    Returns:
      The model that was written, and what it was made from.

    Raises:
      FileNotFoundError, ValueError, ImportError: As `from_pretrained`; nothing is written then.
    """
    folder = source if source.is_dir() else source.parent
    above = folder.resolve().parent  # where the authors keep config.json
    from_above = (above / files.CONFIG).is_file() and not (folder / files.CONFIG).is_file()
    if dest.resolve() == folder.resolve() or (dest.resolve() == above and from_above):
        raise ValueError(f"{dest} is where the source lies: convert into another folder.")
    raw, found, tensors = open_source(source)
    model = make_model(found, model_class, "none", changes)
    variables = make_variables(model, found, tensors, 0, changes)
    del tensors
    save_pretrained(dest, model, variables, more=_kept(raw, model.config.num_labels))
    copies = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    with ExitStack() as stack:
        for give_name in [
            stack.enter_context(written(dest / path.name, partial(shutil.copy, path)))
            for path in copies
        ]:
            give_name()
    return model, found


def open_source(source: Path) -> tuple[dict[str, Any], Source, dict[str, Any]]:
    """The config.json, what it says, and the tensors.

    Raises:
      FileNotFoundError: Nothing there, or no config.json.
      ValueError: A damaged file, another model, several files to choose from.
      ImportError: Without a package that the file needs.
    """
    if not source.exists():
        raise FileNotFoundError(f"There is no {source} to convert.")
    if source.is_file() and source.suffix == ".safetensors":
        raise ValueError(f"{source} is one file of a folder: convert {source.parent}.")
    if source.is_dir() and any(
        (source / name).is_file() for name in (files.WEIGHTS, files.WEIGHTS + files.INDEX)
    ):
        raw = files.read_config_file(source)
        return raw, read_source(raw, source), files.read_weights(source)
    pickled = _torch_files(source)
    # The authors' code keeps config.json one folder above its checkpoints.
    beside = pickled[0].parent
    config = next((d for d in (beside, beside.parent) if (d / files.CONFIG).is_file()), None)
    if config is None:
        raise FileNotFoundError(
            f"{pickled[0]} needs the {files.CONFIG} of its model, beside it or one folder above."
        )
    raw = files.read_config_file(config)
    tensors: dict[str, Any] = {}
    for path in pickled:
        tensors |= authors.read_torch(path)
    if "model_type" in raw:
        return raw, read_source(raw, source), tensors
    found, tensors = authors.read_source(raw, tensors, source)
    return raw, found, tensors


def _torch_files(source: Path) -> list[Path]:
    """The files of one pickled checkpoint."""
    if source.is_file():
        return [source]
    if (source / files.TORCH_WEIGHTS).is_file():
        return [source / files.TORCH_WEIGHTS]
    if (source / (files.TORCH_WEIGHTS + files.INDEX)).is_file():
        return files.shards(source / (files.TORCH_WEIGHTS + files.INDEX))
    there = sorted(path for path in source.iterdir() if path.suffix in TORCH_ENDINGS)
    there = [path for path in there if path.is_file() and path.name not in TOKENIZER_FILES]
    if not there:
        raise FileNotFoundError(
            f"{source} holds no weights: neither {files.WEIGHTS} nor {files.TORCH_WEIGHTS} nor"
            f" another file ending in {', '.join(TORCH_ENDINGS)}."
        )
    if len(there) > 1:
        names = ", ".join(path.name for path in there)
        raise ValueError(f"{source} holds several checkpoints ({names}): name one of them.")
    return there


def _kept(raw: Mapping[str, Any], num_labels: int) -> dict[str, Any]:
    """What the new config.json takes over from the old one."""
    defaults = _TOKEN_IDS.get(raw.get("model_type", ""), {})
    kept: dict[str, Any] = {key: raw.get(key, default) for key, default in defaults.items()}
    labels = raw.get("id2label")
    if isinstance(labels, Mapping) and len(labels) == num_labels:
        kept["id2label"] = labels
        theirs = raw.get("label2id")
        kept["label2id"] = (
            theirs
            if isinstance(theirs, Mapping)
            else {str(label): int(number) for number, label in labels.items()}
        )
    return kept
