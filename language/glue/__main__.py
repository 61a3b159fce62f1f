"""Reads a task's files and prints statistics and examples: `python -m language.glue sst2 --dir=GLUE`.

With `--tokenizer` the data are prepared as for fine-tuning. Without it, lengths are in words.
"""

import argparse
import logging
import sys
from collections.abc import Sequence

from cli.commands import parser_of, run_to_end
from dataprep import cache
from language.glue import statistics
from language.glue.data import GlueConfig, find_files, load, notes_of, read_files
from language.glue.tasks import TASKS, GlueTask, describe
from language.tasks.examples import Example
from reporting.tables import markdown

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
    found = read_files(task, find_files(task, cache.user_path(args.dir)), args.seed)
    notes = notes_of(found)
    distinct = notes["different"]
    if args.tokenizer:
        from language.tokenizer import load_tokenizer

        names = ("task", "dir", "max_len", "seed")
        config = GlueConfig(**{name: getattr(args, name) for name in names})
        data = load(config, load_tokenizer(args.tokenizer))
        num_bytes = cache.check(data.folder)
        print(f"{task.title}: {num_bytes / 2**20:,.1f} MiB in {data.folder}, all hashes match.")
        print(f"SHA-256 {data.sha256}\n")
        rows = {
            name: statistics.token_statistics(task, split, distinct[name], args.max_len)
            for name, split in data.splits.items()
        }
    else:
        rows = {
            name: statistics.word_statistics(task, examples, distinct[name])
            for name, examples in found.splits.items()
        }
    table = [{task.title: name, **row} for name, row in rows.items()]
    print(markdown(table))
    shared = ", ".join(f"{name} {count:,}" for name, count in notes["shared"].items())
    print(f"Number of distinct examples that two splits share, ignoring labels: {shared}.\n")
    for name, lines in notes["left_out"].items():
        print(f"Rows of {name} skipped as empty or split over several lines: {len(lines):,}.\n")
    for example in found.splits["train"][: max(args.show, 0)]:
        print(_format_example(example, task))


def _format_example(example: Example, task: GlueTask) -> str:
    label = example.label or 0
    name = f"{label:g}" if task.is_regression else f"{int(label)} ({task.labels[int(label)]})"
    texts = [
        text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} …"
        for text in example.texts
    ]
    return "\n".join([f"Training example {example.id}, label {name}:", *texts, ""])


if __name__ == "__main__":
    sys.exit(main())
