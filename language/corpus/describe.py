"""Describes a prepared corpus: sizes and lengths of its splits, and pairs."""

import numpy as np

from dataprep import cache
from language.corpus.data import Corpus
from reporting.tables import lengths_cell, markdown

SHOWN = 2  # training pairs


def describe_data(found: Corpus) -> str:
    """Returns a table of the splits and the first training pairs.

    Raises:
      ValueError, FileNotFoundError: A prepared file is modified or missing.
    """
    num_bytes, train = cache.check(found.folder), found.splits["train"]
    lines = [
        f"{num_bytes / 2**20:,.1f} MiB in {found.folder}, all hashes match.",
        f"SHA-256 {found.sha256}, vocabulary of {found.tokenizer.vocab_size:,} tokens\n",
        _table(found),
    ]
    for row in range(min(SHOWN, len(train))):
        first, second = train[row].first, train[row].second
        lines.append(f"Training pair {row}, {len(first)} + {len(second)} tokens:")
        decode = found.tokenizer.decode
        lines.append(f"A: {decode(first)}\nB: {decode(second)}\n")
    return "\n".join(lines)


def _table(found: Corpus) -> str:
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
