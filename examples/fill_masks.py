"""Fills the masks of a text with a published checkpoint, and shows what a mask attends to.

    hf download uw-madison/nystromformer-512 --local-dir FOLDER
    python examples/fill_masks.py FOLDER --text "paris is the [MASK] of france."

Needs the extra `language`, and torch, because the weights of this model are a PyTorch pickle. The printed
row of the attention map is that of the first mask in `--layer`, by default the last layer. It is a row of
Nyström attention's map, so its entries need not sum to one. It is exact if the text has at most as many
tokens as landmarks.
"""

import argparse
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from nystromformer_jax import attention_maps
from nystromformer_jax.pretrained import load

TOP = 5  # words printed per mask, and tokens per row
TEXT = "paris is the [MASK] of france, and london is the capital of [MASK]."


@functools.partial(jax.jit, static_argnames=("model", "layer"))
def row_of_attention(model, variables, ids, position, layer):
    """Returns the row [L] of a layer's attention map at a position, the mean over the heads."""
    maps = attention_maps(model, variables, ids[None], deterministic=True)
    return maps[layer].rows(position[None])[0, :, 0].mean(axis=0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the most probable words for every mask and the largest entries of a row of attention."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="folder in Hugging Face's layout, or a model on its Hub")
    parser.add_argument("--text", default=TEXT, help="text with [MASK] where words are missing")
    parser.add_argument(
        "--layer", type=int, default=-1, help="layer of the printed row; -1 is the last"
    )
    given = parser.parse_args(arguments)
    try:
        # Hugging Face runs the published checkpoints as exact attention. This selects landmarks.
        language_model = load(given.folder, attention="nystrom")
        config, tokenizer = language_model.model.config, language_model.tokenizer
        (ids,) = tokenizer([given.text.replace("[MASK]", str(tokenizer.mask_token))])["input_ids"]
        if len(ids) > config.max_len:
            raise SystemExit(f"The text has {len(ids)} tokens; this model reads {config.max_len}.")
        filled = language_model.fill_mask(given.text, top_k=TOP)
    except (OSError, ValueError, ImportError) as error:
        raise SystemExit(str(error)) from None
    if not -config.num_layers <= given.layer < config.num_layers:
        raise SystemExit(
            f"--layer={given.layer} does not exist: the model has {config.num_layers} layers."
        )
    for number, best in enumerate(filled, 1):
        print(f"mask {number}: {', '.join(f'{word} {share:.1%}' for word, share in best)}")

    first = jnp.array(ids.index(tokenizer.mask_token_id))
    model, variables = language_model.model, language_model.variables
    row = np.asarray(row_of_attention(model, variables, jnp.array(ids), first, given.layer))
    best = np.argsort(-row)[:TOP]
    tokens = tokenizer.convert_ids_to_tokens([ids[i] for i in best])
    entries = (f"{word} ({i}) {row[i]:.3f}" for i, word in zip(best, tokens, strict=True))
    print(f"mask 1 attends to: {', '.join(entries)}")


if __name__ == "__main__":
    main()
