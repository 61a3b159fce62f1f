"""Prepares a corpus, checks it and says what it is like: `python -m language.corpus wiki.train.tokens`."""

import argparse
import dataclasses
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import get_args, get_type_hints

import numpy as np

from harness import cache
from language import corpus
from language.corpus import Corpus, CorpusConfig

PERCENTILES = (5, 50, 95)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares and reports; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m language.corpus", description=__doc__)
    choices = {name: get_args(hint) for name, hint in get_type_hints(CorpusConfig).items()}
    default = CorpusConfig(dir="")
    parser.add_argument(
        "dir", help="a text file, a folder of them, JSON lines, or a data set of tfds"
    )
    for name in ("source", "documents"):
        parser.add_argument(f"--{name}", choices=choices[name], default="auto")
    parser.add_argument("--tokenizer", default="", help="a path; empty: train one on the corpus")
    parser.add_argument("--cased", action="store_true", help="train one that keeps capital letters")
    for name, meaning in (
        ("vocab_size", "tokens of a tokenizer that is trained"),
        ("max_len", "tokens of an instance, special ones included"),
        ("short_rate", "share of instances that aim at fewer tokens"),
        ("held_out", "share of documents for validation"),
        ("seed", "of the split and of the instances"),
        ("workers", "processes; 0: one for every core"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name}", type=type(value), default=value, help=meaning)
    parser.add_argument("--show", type=int, default=2, help="how many instances to print")
    given = vars(parser.parse_args(arguments))
    show, cased = given.pop("show"), given.pop("cased")
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        found = corpus.load(CorpusConfig(**given, lowercase=not cased))
        checked = cache.check(found.folder)
        print(f"{checked / 2**20:,.1f} MiB in {found.folder}, all hashes right.")
        print(f"SHA-256 {found.sha256}, {found.tokenizer.vocab_size:,} different tokens\n")
        print(table(found))
        for row in range(min(show, len(found.splits["train"]))):
            print(_instance(found, row))
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        sentence = _our_flags(" ".join(str(error).split()))
        print(f"language.corpus: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("language.corpus: stopped by Ctrl-C; the same command goes on", file=sys.stderr)
        return 130
    return 0


def table(found: Corpus) -> str:
    """What each split was made of, and how long its instances are; for people and for README."""
    rows = [
        "| split | documents | left out | sentences | tokens | unknown, % | pairs"
        f" | length: {', '.join(f'{p} %' for p in PERCENTILES)}, longest |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for split, pairs in found.splits.items():
        of = found.statistics[split]
        lengths = np.diff(pairs.offsets)
        quantiles = [*np.percentile(lengths, PERCENTILES), lengths.max()]
        rows.append(
            f"| {split} | {of.documents:,} | {of.left_out:,} | {of.sentences:,} | {of.tokens:,}"
            f" | {100 * of.unknown_share:.2f} | {of.pairs:,}"
            f" | {', '.join(f'{length:,.0f}' for length in quantiles)} |"
        )
    return "\n".join([*rows, ""])


def _instance(found: Corpus, row: int) -> str:
    """A training instance, for people."""
    pair = found.splits["train"][row]
    return "\n".join(
        [
            f"Training pair {row}, {len(pair.first)} + {len(pair.second)} tokens:",
            f"A: {found.tokenizer.decode(pair.first)}",
            f"B: {found.tokenizer.decode(pair.second)}",
            "",
        ]
    )


def _our_flags(sentence: str) -> str:
    """Names the flags of this command for the keys of a config."""
    keys = "|".join(field.name for field in dataclasses.fields(CorpusConfig))
    return re.sub(
        rf"(?<![\w./-])(?:--config\.)?data\.({keys})\b",
        lambda match: "DIR" if match[1] == "dir" else f"--{match[1]}",
        sentence,
    )


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
