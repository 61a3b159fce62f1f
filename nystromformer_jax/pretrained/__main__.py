"""Shows a checkpoint, or converts one to a folder that `from_pretrained` reads.

python -m nystromformer_jax.pretrained show FOLDER
python -m nystromformer_jax.pretrained convert SOURCE DEST --attention=nystrom --max_len=4096
"""

import argparse
import functools
import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nystromformer_jax.backbone import NystromformerConfig
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.authors import read_authors_source
from nystromformer_jax.pretrained.config_json import Source, differences_upstream, read_source
from nystromformer_jax.pretrained.folder import make_config, make_model, save_pretrained
from nystromformer_jax.pretrained.names import MODELS, ModelClass, Tensors, find_model
from nystromformer_jax.pretrained.sentence import MODULES, OF_TOKENS, PROMPTS, module_files
from nystromformer_jax.pretrained.tensors import model_of, param_shapes, read_params
from nystromformer_jax.support.durable import DISK_FAILED, read_json, write_files

CHANGES = {"attention": str, "max_len": int, "num_landmarks": int, "conv_kernel_size": int}
# Files of a tokenizer and of sentence-transformers, and the keys of their maximum length.
OTHER_FILES: dict[str, tuple[str, ...]] = {
    "tokenizer.json": ("max_length",),
    "tokenizer_config.json": ("model_max_length", "max_len"),
    "special_tokens_map.json": (),
    "added_tokens.json": (),
    "vocab.txt": (),
    "vocab.json": (),
    "merges.txt": (),
    "spiece.model": (),
    "sentencepiece.bpe.model": (),
    MODULES: (),
    PROMPTS: (),
    **dict.fromkeys(OF_TOKENS, ("max_seq_length",)),
}
TORCH_SUFFIXES = (".bin", ".cp", ".model", ".pt", ".pth")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m nystromformer_jax.pretrained",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser(
        "show", help="print the model in a folder and the attention that it runs"
    )
    show.add_argument("folder", type=Path)
    conversion = commands.add_parser("convert", help="write a folder that from_pretrained reads")
    conversion.add_argument("source", type=Path, help="a folder, or a file pickled by PyTorch")
    conversion.add_argument("dest", type=Path, help="a folder, created if missing")
    for name, kind in CHANGES.items():
        conversion.add_argument(f"--{name}", type=kind)
    conversion.add_argument("--model_class", help=", ".join(MODELS))
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    logging.getLogger("jax").setLevel(logging.WARNING)
    try:
        if args.command == "show":
            lines = describe(args.folder)
        else:
            model_class = find_model(args.model_class) if args.model_class else None
            changes = {name: getattr(args, name) for name in CHANGES}
            changes = {name: value for name, value in changes.items() if value is not None}
            lines = convert(args.source, args.dest, model_class, changes)
        print("\n".join(lines))
    except (ValueError, OSError, ImportError) as error:
        print(f"nystromformer_jax.pretrained: {' '.join(str(error).split())}", file=sys.stderr)
        return 1 if isinstance(error, OSError) and error.errno in DISK_FAILED else 2
    return 0


def describe(folder: Path) -> list[str]:
    """Returns lines about the checkpoint in a folder."""
    raw = files.read_config_file(folder)
    source = read_source(raw, folder, functools.partial(files.read_weights, folder))
    config = make_config(source, "none", {})
    name = source.model.__name__ if source.model else "no such model: pass model_class"
    model = (source.model or MODELS["Nystromformer"])(config)
    count = sum(math.prod(shape) for shape in param_shapes(model).values())
    weights = [path for path in sorted(folder.iterdir()) if path.suffix in (".safetensors", ".bin")]
    lines = [
        f"{folder}: {source.kind}, {source.architecture or 'no architecture'} ({name} here)",
        _sizes(config),
        f"{count:,} parameters in float32",
        f"attention upstream: {_upstream_attention(source)}",
        f"attention here: {_our_attention(config)}",
    ]
    if source.kind == "nystromformer_jax":
        differences = differences_upstream(type(model), config)
        lines += [f"in transformers: {difference}" for difference in differences]
    lines += [f"{path.name}: {path.stat().st_size / 2**20:,.1f} MiB" for path in weights]
    return lines


def convert(
    path: Path, dest: Path, model_class: ModelClass | None, changes: dict[str, Any]
) -> list[str]:
    """Converts a checkpoint to the folder `dest`, with its tokenizer and the files of sentence-transformers.

    Returns lines about the model.

    `path` is a folder that `from_pretrained` reads, or a pickled file of the authors' code or its folder,
    with config.json in that folder or the one above. `dest` must be missing or empty. `model_class` and
    `changes` are passed to `from_pretrained`. After an error nothing is written.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: pass the file or folder of a checkpoint.")
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise ValueError(f"{dest} exists and is not an empty folder: pass another destination.")
    folder = path if path.is_dir() else path.parent
    config = next((x for x in (folder, folder.parent) if (x / files.CONFIG).is_file()), None)
    if config is None:
        raise FileNotFoundError(
            f"{path} needs the {files.CONFIG} of its model, in the same folder or the one above."
        )

    @functools.cache
    def weights() -> Tensors:
        one_file = [path] if path.is_file() else []
        return files.read_tensors(one_file or files.weight_files(path) or [_only_pickle(path)])

    raw = files.read_config_file(config)
    if "model" in raw and not raw.keys() & {"model_type", "optimizer"}:
        source, tensors = read_authors_source(raw, weights(), path, model_class)
    else:
        source, tensors = read_source(raw, path, weights), weights()
    model = make_model(source, model_class or model_of(source, tensors), "none", changes)
    params = read_params(model, source, tensors)
    others = {
        dest / name: functools.partial(
            Path.write_bytes, data=_other_file(folder / name, changes.get("max_len"))
        )
        for name in (*OTHER_FILES, *module_files(folder))
        if (folder / name).is_file()
    }
    save_pretrained(dest, model, {"params": params})
    for file in others:
        file.parent.mkdir(exist_ok=True)
    write_files(others)
    lines = [f"{dest} contains a {type(model).__name__}; {_sizes(model.config)}."]
    if source.why_exact and "attention" not in changes:
        lines.insert(0, f"Its attention is exact, as upstream: {source.why_exact}.")
    return lines


def _only_pickle(folder: Path) -> Path:
    """Returns the only file in a folder that PyTorch pickled; raises an error if there is none or several."""
    paths = sorted(path for path in folder.glob("[!.]*") if path.suffix in TORCH_SUFFIXES)
    paths = [path for path in paths if path.is_file() and path.name not in OTHER_FILES]
    if not paths:
        raise FileNotFoundError(
            f"{folder} contains no weights: neither {files.WEIGHTS} nor {files.TORCH_WEIGHTS} nor"
            f" another file ending in {', '.join(TORCH_SUFFIXES)}."
        )
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise ValueError(f"{folder} contains several checkpoints ({names}): pass one of them.")
    return paths[0]


def _other_file(path: Path, max_len: int | None) -> bytes:
    """Returns the content of a file beside the model, with the maximum length `max_len` if given."""
    keys = OTHER_FILES.get(path.name)
    if keys and max_len is not None:
        values = read_json(path)
        holder = (values.get("truncation") or {}) if path.name == "tokenizer.json" else values
        if lengths := {key: max_len for key in keys if key in holder}:
            holder.update(lengths)
            return (json.dumps(values, indent=2, ensure_ascii=False) + "\n").encode()
    return path.read_bytes()


def _sizes(config: NystromformerConfig) -> str:
    return (
        f"{config.num_layers} layers of {config.embed_dim}, {config.num_heads} heads, MLP of"
        f" {config.mlp_dim:,}; {config.vocab_size:,} tokens, {config.max_len:,} positions,"
        f" {config.num_types} types"
    )


def _upstream_attention(source: Source) -> str:
    if source.kind == "nystromformer_jax":
        return "as here"
    if source.fields["attention"] == "nystrom":
        return f"{source.fields['num_landmarks']} landmarks and a convolution"
    why = f" ({source.why_exact}), and a convolution" if source.why_exact else ""
    return f"exact, in O(n²){why}"


def _our_attention(config: NystromformerConfig) -> str:
    width = config.conv_kernel_size
    convolution = f", convolution of {width}" if width else ", no convolution"
    if config.attention == "nystrom":
        return f"nystrom, {config.num_landmarks} landmarks{convolution}"
    if config.attention == "softmax":
        return f"softmax, exact{convolution}; attention='nystrom' uses landmarks"
    return config.attention


if __name__ == "__main__":
    sys.exit(main())
