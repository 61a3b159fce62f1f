"""Prepares, verifies and describes the data of a task: `python -m lra.data listops`."""

import argparse
import logging
import sys
from collections.abc import Sequence

import numpy as np

from cli.commands import parser_of, run_to_end
from dataprep import cache
from lra import data
from lra.data import statistics
from lra.data.task import Task


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = parser_of("lra.data", __doc__)
    parser.add_argument("task", help=f"{', '.join(data.TASKS)}, mqar-256-16 or module:name")
    parser.add_argument("--data_dir", default="", help="folder of the task's files")
    parser.add_argument("--source", default="auto", help="auto, files, generated or tfds")
    parser.add_argument(
        "--examples", type=int, default=0, help="maximum number per split; 0 for all"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of generated data and held-out splits"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 for one per core")
    parser.add_argument("--show", type=int, default=2, help="number of examples to print")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    flags = {f"data.{key}": f"--{key}" for key in ("source", "examples", "seed", "workers")}
    return run_to_end("lra.data", lambda: _report(given), {**flags, "data.dir": "--data_dir"})


def _report(given: argparse.Namespace) -> None:
    info = data.describe(given.task)
    task = data.load(
        data.DataConfig(
            task=given.task,
            source=given.source,
            dir=given.data_dir,
            examples=given.examples,
            seed=given.seed,
            workers=given.workers,
            max_len=1,  # unused: no batch is made
        )
    )
    num_bytes = cache.check(task.folder)
    print(f"{task.name}: {num_bytes / 2**20:,.1f} MiB in {task.folder}, all hashes verified.")
    official = ""
    if info.official_sha256 == task.sha256:
        official = ", as prepared from the official files with seed 0."
    elif info.official_sha256:
        official = f"; the hash of the official files with seed 0 is {info.official_sha256}."
    print(f"SHA-256 {task.sha256}{official}\n")
    print(statistics.markdown(task, info.num_classes))
    for row in range(min(given.show, len(task.splits["train"]))):
        print(_format_example(task, row, is_image=bool(info.num_pixels)))


def _format_example(task: Task, row: int, *, is_image: bool) -> str:
    """Returns the training example in `row` as text."""
    split = task.splits["train"]
    *sequences, label = split[row]
    names = [task.class_names[one] for one in np.ravel(label)] if task.class_names else []
    name = f" ({', '.join(names)})" if names else ""
    texts = [task.decode(sequence) for sequence in sequences]
    if not is_image:
        texts = [text if len(text) <= 400 else f"{text[:400]} …" for text in texts]
    kind = "example" if split.pairs is None else "pair"
    return "\n".join([f"Training {kind} {row}, label {label}{name}:", *texts, ""])


if __name__ == "__main__":
    sys.exit(main())
