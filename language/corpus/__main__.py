"""Prepares a corpus and prints statistics and examples: `python -m language.corpus wiki.train.tokens`."""

import logging
import sys
from collections.abc import Sequence
from typing import get_args, get_type_hints

import numpy as np

from cli.commands import parser_of, run_to_end
from dataprep import cache
from language import corpus
from language.corpus import Corpus, CorpusConfig
from reporting.tables import lengths_cell, markdown


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = parser_of("language.corpus", __doc__)
    choices = {name: get_args(hint) for name, hint in get_type_hints(CorpusConfig).items()}
    default = CorpusConfig(dir="")
    parser.add_argument(
        "dir", help="a text file, a folder of them, JSON lines, or a dataset of tfds"
    )
    for name in ("source", "documents"):
        parser.add_argument(f"--{name}", choices=choices[name], default="auto")
    parser.add_argument(
        "--tokenizer", default="", help="a tokenizer's path; empty: train one on the corpus"
    )
    parser.add_argument(
        "--cased", action="store_true", help="train a tokenizer that keeps capital letters"
    )
    for name, description in (
        ("vocab_size", "size of a trained tokenizer's vocabulary"),
        ("max_len", "tokens per pair, special tokens included"),
        ("short_rate", "share of pairs with a smaller target length"),
        ("held_out", "share of documents held out for validation"),
        ("seed", "seed of the split and of the pairs"),
        ("workers", "number of processes; 0: one per core"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=description)
    parser.add_argument("--show", type=int, default=2, help="number of pairs to print")
    args = vars(parser.parse_args(arguments))
    show, cased = args.pop("show"), args.pop("cased")
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    flags = {f"data.{name}": f"--{name}" for name in args} | {"data.dir": "DIR"}
    return run_to_end(
        "language.corpus", lambda: _report(CorpusConfig(**args, lowercase=not cased), show), flags
    )


def _report(config: CorpusConfig, show: int) -> None:
    found = corpus.load(config)
    num_bytes = cache.check(found.folder)
    print(f"{num_bytes / 2**20:,.1f} MiB in {found.folder}, all hashes match.")
    print(f"SHA-256 {found.sha256}, vocabulary of {found.tokenizer.vocab_size:,} tokens\n")
    print(table(found))
    for row in range(min(show, len(found.splits["train"]))):
        pair = found.splits["train"][row]
        print(f"Training pair {row}, {len(pair.first)} + {len(pair.second)} tokens:")
        print(
            f"A: {found.tokenizer.decode(pair.first)}\nB: {found.tokenizer.decode(pair.second)}\n"
        )


def table(found: Corpus) -> str:
    """Returns a Markdown table of each split's documents, tokens and lengths."""
    rows = []
    for split, pairs in found.splits.items():
        counts = found.statistics[split]
        rows.append(
            {
                "split": split,
                "documents": f"{counts.documents:,}",
                "left out": f"{counts.left_out:,}",
                "sentences": f"{counts.sentences:,}",
                "tokens": f"{counts.tokens:,}",
                "unknown, %": f"{100 * counts.unknown / max(counts.tokens, 1):.2f}",
                "pairs": f"{counts.pairs:,}",
                **lengths_cell(np.diff(pairs.offsets)),
            }
        )
    return markdown(rows)


if __name__ == "__main__":
    sys.exit(main())
