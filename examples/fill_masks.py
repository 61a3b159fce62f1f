"""Fills the masks of a text with a published checkpoint, and shows what a mask attends to.

    hf download uw-madison/nystromformer-512 --local-dir FOLDER
    python -m nystromformer_jax.pretrained convert FOLDER OURS     # its weights are a PyTorch pickle
    python examples/fill_masks.py OURS --text "paris is the [MASK] of france."

A folder with model.safetensors and tokenizer.json needs no conversion. The printed row of the attention
map is that of the first mask in `--layer`, by default the last layer. It is a row of Nyström attention's
map, so its entries need not sum to one. It is exact if the text has at most as many tokens as landmarks.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax import NystromformerForMaskedLM, nystrom_attention_rows
from nystromformer_jax.pretrained import from_pretrained

TOP = 5  # words printed per mask, and tokens per row
TEXT = "paris is the [MASK] of france, and london is the capital of [MASK]."


def load(folder):
    """Returns the model, its variables, its tokenizer and the tokenizer's mask token."""
    from tokenizers import Tokenizer

    if not (folder / "tokenizer.json").is_file():
        raise SystemExit(
            f"{folder} contains no model with a tokenizer.json: download one, for example with"
            f" hf download uw-madison/nystromformer-512 --local-dir {folder}"
        )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    try:
        # Hugging Face runs the published checkpoints as exact attention. This selects landmarks.
        model, variables = from_pretrained(folder, attention="nystrom")
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(str(error)) from None
    mask = next((x for x in ("[MASK]", "<mask>") if tokenizer.token_to_id(x) is not None), None)
    if mask is None or not isinstance(model, NystromformerForMaskedLM):
        raise SystemExit(f"{folder} contains a {type(model).__name__}, which cannot fill masks.")
    return model, variables, tokenizer, mask


@functools.partial(jax.jit, static_argnames="model")
def look_inside(model, variables, ids):
    """Returns the logits [L V] and the query and key [1 L H D] of each layer's attention."""
    layers = []

    def listen(call, args, kwargs, context):
        if context.module.name == "core" and context.method_name == "__call__":
            layers.append(args[:2])
        return call(*args, **kwargs)

    with nn.intercept_methods(listen):
        logits = model.apply(variables, ids[None], deterministic=True)
    return logits[0], layers


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the most probable words for every mask and the largest entries of a row of attention."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="in Hugging Face's layout")
    parser.add_argument("--text", default=TEXT, help="with [MASK] where words are missing")
    parser.add_argument("--layer", type=int, default=-1, help="of the row; -1 is the last")
    given = parser.parse_args(arguments)

    model, variables, tokenizer, mask = load(given.folder)
    ids = tokenizer.encode(given.text.replace("[MASK]", mask)).ids
    masks = np.flatnonzero(np.array(ids) == tokenizer.token_to_id(mask))
    if not masks.size:
        raise SystemExit(
            f"Nothing to fill: write [MASK] where a word is missing; got {given.text!r}."
        )
    if len(ids) > model.config.max_len:
        raise SystemExit(
            f"The text has {len(ids)} tokens; this model reads {model.config.max_len}."
        )
    if not -model.config.num_layers <= given.layer < model.config.num_layers:
        raise SystemExit(
            f"--layer={given.layer} does not exist: the model has {model.config.num_layers} layers."
        )
    logits, layers = look_inside(model, variables, jnp.asarray(ids))

    for number, position in enumerate(masks, 1):
        probabilities = np.asarray(jax.nn.softmax(logits[position]))
        best = np.argsort(-probabilities)[:TOP]
        words = (f"{tokenizer.id_to_token(i)} {probabilities[i]:.1%}" for i in best.tolist())
        print(f"mask {number}: {', '.join(words)}")
    query, key = layers[given.layer]
    rows = nystrom_attention_rows(
        query, key, jnp.asarray(masks[None, :1]), num_landmarks=model.config.num_landmarks
    )
    row = np.asarray(rows[0, :, 0].mean(axis=0))  # over the heads
    best = np.argsort(-row)[:TOP]
    tokens = (f"{tokenizer.id_to_token(ids[i])} ({i}) {row[i]:.3f}" for i in best.tolist())
    print(f"mask 1 attends to: {', '.join(tokens)}")


if __name__ == "__main__":
    main()
