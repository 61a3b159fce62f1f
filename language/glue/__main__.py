"""Reads a task's files and says what they are like: `python -m language.glue sst2 --dir=GLUE`.

With `--tokenizer` the data are prepared as fine-tuning takes them; without, words are counted.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import cache
from language.glue import readers, statistics
from language.glue.data import GlueConfig, load, notes_of
from language.glue.readers import Example
from language.glue.tasks import TASKS, GlueTask, describe

SHOWN_CHARACTERS = 400


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads, counts and shows; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m language.glue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", help=", ".join(TASKS))
    parser.add_argument("--dir", default="", help="the task's folder, or the one above it")
    parser.add_argument("--tokenizer", default="", help="a tokenizer's file, or a model's folder")
    parser.add_argument("--max_len", type=int, default=128, help="tokens of an example")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out of IMDb")
    parser.add_argument("--workers", type=int, default=0, help="threads; 0: one for every core")
    parser.add_argument("--show", type=int, default=2, help="how many training examples to print")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    try:
        _report(given)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        sentence = " ".join(str(error).split())
        for theirs, ours in (("--config.data.dir", "--dir"), ("data.tokenizer", "--tokenizer")):
            sentence = sentence.replace(theirs, ours)  # the names of a config
        print(f"language.glue: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("language.glue: stopped by Ctrl-C; the same command starts again", file=sys.stderr)
        return 130
    return 0


def _report(given: argparse.Namespace) -> None:
    task = describe(given.task)
    found = readers.read(task, readers.find(task, cache.user_path(given.dir)), given.seed)
    if given.tokenizer:
        from language.tokenizer import load_tokenizer

        names = ("task", "dir", "max_len", "seed", "workers")
        config = GlueConfig(**{name: getattr(given, name) for name in names})
        data = load(config, load_tokenizer(given.tokenizer))
        checked = cache.check(data.folder)
        print(f"{task.title}: {checked / 2**20:,.1f} MiB in {data.folder}, all hashes right.")
        print(f"SHA-256 {data.sha256}\n")
        print(statistics.markdown(task, data.statistics))
    else:
        splits = {name: _words(own, task) for name, own in found.splits.items()}
        print(statistics.markdown(task, {"splits": splits, **notes_of(found)}, unit="words"))
    for example in found.splits["train"][: given.show]:
        print(_shown(example, task))


def _words(examples: Sequence[Example], task: GlueTask) -> dict[str, Any]:
    """What `statistics.of_split` says, but of words."""
    labels = np.array([example.label for example in examples if example.label is not None])
    dtype = np.float32 if task.is_regression else np.int32
    lengths = [sum(len(text.split()) for text in example.texts) for example in examples]
    return {
        "examples": len(examples),
        "labels": statistics.of_labels(labels.astype(dtype), task) if len(labels) else None,
        "length": statistics.of_lengths(np.array(lengths)),
    }


def _shown(example: Example, task: GlueTask) -> str:
    """A training example, for people."""
    label = example.label or 0
    name = f"{label:g}" if task.is_regression else f"{int(label)} ({task.labels[int(label)]})"
    texts = [
        text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"
        for text in example.texts
    ]
    return "\n".join([f"Training example {example.id}, label {name}:", *texts, ""])


if __name__ == "__main__":
    sys.exit(main())
