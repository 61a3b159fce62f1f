"""Reads a task's files and prints statistics and examples: `python -m language.glue sst2 --dir=GLUE`.

With `--tokenizer` the data are prepared as for fine-tuning. Without it, lengths are in words.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.commands import parser_of, run_to_end
from dataprep import cache
from language.finetune.data import load
from language.finetune.examples import Example, Split, truncated_lengths
from language.finetune.glue import GlueConfig, find, read
from language.finetune.glue_tasks import TASKS, GlueTask, describe
from reporting.tables import lengths_cell, markdown

MAX_CHARACTERS = 400  # of a text that is printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code."""
    parser = parser_of("language.glue", __doc__)
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("--dir", default="", help="the task's folder, or the one above it")
    parser.add_argument("--tokenizer", default="", help="a tokenizer's file, or a model's folder")
    parser.add_argument("--max_len", type=int, default=128, help="tokens per example")
    parser.add_argument("--seed", type=int, default=0, help="seed of IMDb's validation split")
    parser.add_argument("--show", type=int, default=2, help="number of training examples to print")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    keys = ("dir", "tokenizer", "max_len", "seed")
    return run_to_end(
        "language.glue", lambda: _report(args), {f"data.{key}": f"--{key}" for key in keys}
    )


def _report(args: argparse.Namespace) -> None:
    task = describe(args.task)
    splits, notes = read(task, find(task, cache.user_path(args.dir)), args.seed)
    if args.tokenizer:
        from language.tokenizer import load_tokenizer

        names = ("task", "dir", "max_len", "seed")
        config = GlueConfig(**{name: getattr(args, name) for name in names})
        data = load(config, load_tokenizer(args.tokenizer))
        num_bytes = cache.check(data.folder)
        print(f"{task.title}: {num_bytes / 2**20:,.1f} MiB in {data.folder}, all hashes match.")
        print(f"SHA-256 {data.sha256}\n")
        rows = {name: token_row(task, split, args.max_len) for name, split in data.splits.items()}
    else:
        rows = {name: word_row(task, examples) for name, examples in splits.items()}
    table = [
        {
            task.title: name,
            "examples": row.pop("examples"),
            "distinct": f"{notes['different'][name]:,}",
            **row,
        }
        for name, row in rows.items()
    ]
    print(markdown(table))
    shared = ", ".join(f"{name} {count:,}" for name, count in notes["shared"].items())
    print(f"Number of distinct examples that two splits share, ignoring labels: {shared}.\n")
    for name, lines in notes["left_out"].items():
        print(f"Rows of {name} skipped as empty or split over several lines: {len(lines):,}.\n")
    for i, example in enumerate(splits["train"][: max(args.show, 0)]):
        print(_format_example(example.id or str(i), example, task))


def word_row(task: GlueTask, examples: Sequence[Example]) -> dict[str, str]:
    """Returns statistics of a split: the number of examples, labels, and lengths in words."""
    labels = [task.number(own.label, own.where) for own in examples if own.label is not None]
    lengths = [sum(len(text.split()) for text in own.texts) for own in examples]
    return _row(task, np.array(lengths), np.array(labels), "words")


def token_row(task: GlueTask, split: Split, max_len: int) -> dict[str, str]:
    """Returns statistics of a tokenized split, with the fraction of examples truncated at `max_len`."""
    lengths = split.lengths.sum(axis=1) + split.num_special
    kept = truncated_lengths(split.lengths, max_len, split.num_special)
    truncated = (kept < split.lengths).any(axis=1)
    row = _row(task, lengths, split.labels if split.is_labeled else np.array([]), "tokens")
    return row | {f"truncated at {max_len}": f"{100 * truncated.mean():.2f} %"}


def _row(
    task: GlueTask, lengths: npt.NDArray[np.integer], labels: npt.NDArray[Any], unit: str
) -> dict[str, str]:
    shares = "none"
    if len(labels) and task.is_regression:
        shares = f"{labels.mean(dtype=float):.2f} ± {labels.std(dtype=float):.2f}"
    elif len(labels):
        counts = np.bincount(labels.astype(int), minlength=len(task.labels))
        shares = ", ".join(f"{100 * count / len(labels):.1f} %" for count in counts.tolist())
    return {
        "examples": f"{len(lengths):,}",
        ", ".join(task.labels) or "scores": shares,
        **lengths_cell(lengths, unit),
    }


def _format_example(name: str, example: Example, task: GlueTask) -> str:
    number = task.number(example.label, example.where)
    label = f"{number:g}" if task.is_regression else f"{number} ({example.label})"
    texts = [
        text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
        for text in example.texts
    ]
    return "\n".join([f"Training example {name}, label {label}:", *texts, ""])


if __name__ == "__main__":
    sys.exit(main())
