"""Time to embed documents of mixed lengths, compared with padding all of them to the longest.

    python -m benchmarks.embed aclImdb/train/pos aclImdb/train/neg

The documents are the first `--documents` text files of all folders in turn, with a WordPiece vocabulary
trained on them. The model has the sizes of configs/pretrain.py:demo, Nyström attention and random weights.
Times are CPU seconds of this process, which other jobs on the machine change little. The first pass includes
compilation. Tokenization is not timed.
"""

import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from command import parser_of, run_to_end
from launch import huge_pages
from nystromformer_jax import Nystromformer, NystromformerConfig
from nystromformer_jax.pretrained import LanguageModel
from nystromformer_jax.training import describe_environment
from reporting.tables import markdown as markdown_table
from reporting.writer import path_argument

SIZES: dict[str, Any] = {"num_layers": 4, "embed_dim": 128, "num_heads": 4, "mlp_dim": 512}
VOCAB_SIZE = 8_192
BASE_LEN, BATCH_SIZE = 64, 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and returns the exit code."""
    parser = parser_of("benchmarks.embed", __doc__)
    parser.add_argument("folders", nargs="+", type=path_argument, help="folders of text files")
    parser.add_argument("--documents", type=int, default=1_000)
    given = parser.parse_args(arguments)
    lists = [sorted(folder.glob("*.txt")) for folder in given.folders]
    if given.documents < 1:
        parser.error(f"--documents must be 1 or more, got {given.documents}")
    if not all(lists):
        parser.error(f"no text files in one of {', '.join(map(str, given.folders))}")
    in_turn = itertools.chain(*itertools.zip_longest(*lists))
    paths = [path for path in in_turn if path is not None][: given.documents]
    return run_to_end("benchmarks.embed", lambda: _measure(paths))


def _measure(paths: Sequence[Path]) -> None:
    rows = tokenize([path.read_text(encoding="utf-8") for path in paths])
    lengths = [len(row) for row in rows]
    processor = describe_environment()["processor"]
    print(f"{processor}, {jax.devices()[0].device_kind}, jax {jax.__version__}")
    print(
        f"{len(rows):,} documents of {min(lengths)} to {max(lengths):,} tokens, mean"
        f" {np.mean(lengths):.0f}, in batches of {BATCH_SIZE}"
    )
    found, padded = embed(rows, BASE_LEN), embed(rows, max(lengths))
    table = [
        [name, str(len(result["lengths"])), *(f"{value:.1f}" for value in result["seconds"])]
        for name, result in (("64, 128, 256, …", found), ("the longest", padded))
    ]
    columns = ["padded to", "programs", "first pass, CPU s", "second pass, CPU s"]
    print(f"\n{markdown_table(pd.DataFrame(table, columns=columns))}", end="")
    scale = np.abs(padded["embeddings"]).max()
    difference = np.abs(found["embeddings"] - padded["embeddings"]).max() / scale
    print(f"\nLargest difference: {difference:.1e} of the largest entry.")


def tokenize(texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of texts, with a vocabulary trained on them."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train_from_iterator(texts, VOCAB_SIZE, show_progress=False)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def embed(rows: Sequence[Sequence[int]], base_len: int) -> dict[str, Any]:
    """Returns embeddings, the lengths of the compiled programs, and the CPU seconds of two passes."""
    config = NystromformerConfig(vocab_size=VOCAB_SIZE, max_len=max(map(len, rows)), **SIZES)
    model = Nystromformer(config, name=f"from_{base_len}")  # so that two models share no program
    tokens = jnp.zeros((1, config.max_len), jnp.int32)
    variables = jax.jit(lambda rng: model.init(rng, tokens, deterministic=True))(jax.random.key(0))
    language_model = LanguageModel(model, variables, None, BATCH_SIZE, base_len)
    traced: list[int] = []

    def listen(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, Nystromformer) and context.method_name == "__call__":
            traced.append(args[0].shape[1])
        return call(*args, **kwargs)

    seconds = []
    with nn.intercept_methods(listen):
        for _ in range(2):
            began = time.process_time()
            embeddings = language_model.embed(input_ids=rows)
            seconds.append(time.process_time() - began)
    return {"embeddings": embeddings, "lengths": sorted(traced), "seconds": seconds}


if __name__ == "__main__":
    huge_pages.restart()
    sys.exit(main())
