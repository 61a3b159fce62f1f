"""Shows a checkpoint, or converts one to a folder that `from_pretrained` reads.

python -m nystromformer_jax.pretrained show FOLDER
python -m nystromformer_jax.pretrained convert SOURCE DEST --attention=nystrom --max_len=4096
"""

import argparse
import functools
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from nystromformer_jax.backbone import NystromformerConfig
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.config_json import Source, differences_upstream, read_source
from nystromformer_jax.pretrained.convert import convert
from nystromformer_jax.pretrained.folder import make_config
from nystromformer_jax.pretrained.names import MODELS, find_model
from nystromformer_jax.pretrained.tensors import param_shapes
from nystromformer_jax.support.durable import DISK_FAILED

CHANGES = {"attention": str, "max_len": int, "num_landmarks": int, "conv_kernel_size": int}


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
            print("\n".join(describe(args.folder)))
            return 0
        changes = {name: getattr(args, name) for name in CHANGES}
        model, source = convert(
            args.source,
            args.dest,
            model_class=find_model(args.model_class) if args.model_class else None,
            **{name: value for name, value in changes.items() if value is not None},
        )
        if source.exact_by_equality and not args.attention:
            print(f"Its attention is exact, as upstream: {_why_exact(source)}.")
        print(f"{args.dest} contains a {type(model).__name__}; {_sizes(model.config)}.")
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


def _sizes(config: NystromformerConfig) -> str:
    return (
        f"{config.num_layers} layers of {config.embed_dim}, {config.num_heads} heads, MLP of"
        f" {config.mlp_dim:,}; {config.vocab_size:,} tokens, {config.max_len:,} positions,"
        f" {config.num_types} types"
    )


def _why_exact(source: Source) -> str:
    landmarks = source.fields["num_landmarks"]
    length = "seq_len" if source.kind == "the authors' BERT" else "segment_means_seq_len"
    return f"num_landmarks = {length} = {landmarks}, and equal numbers mean exact attention"


def _upstream_attention(source: Source) -> str:
    if source.kind == "nystromformer_jax":
        return "as here"
    if source.exact_by_equality:
        return f"exact, in O(n²) ({_why_exact(source)}), and a convolution"
    if source.fields["attention"] == "nystrom":
        return f"{source.fields['num_landmarks']} landmarks and a convolution"
    return "exact, in O(n²)"


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
