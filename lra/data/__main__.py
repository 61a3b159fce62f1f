"""Prepares a task's data, checks them and says what they are like: `python -m lra.data listops`."""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import cache
from lra import data
from lra.data import pictures, statistics, tfds_source
from lra.data.task import PairSplit, Split, Task

SHEET_IMAGES = 32


def main(arguments: Sequence[str] | None = None) -> int:
    """Prepares and reports; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lra.data", description=__doc__)
    parser.add_argument("task", help=", ".join(data.TASKS))
    parser.add_argument("--data_dir", default="", help="the folder of the task's own files")
    parser.add_argument("--source", default="auto", help="auto, files, generated or tfds")
    parser.add_argument("--examples", type=int, default=0, help="at most so many a split")
    parser.add_argument("--seed", type=int, default=0, help="of generated data and carved splits")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one for every core")
    parser.add_argument("--show", type=int, default=2, help="how many examples to print")
    parser.add_argument("--contact_sheet", default="", help="a PNG to draw pictures of a task into")
    parser.add_argument(
        "--export_tfds", default="", help="a folder to write it into for tensorflow-datasets"
    )
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        name = data.name_of(given.task)
        info = data.TASKS[name]
        sheet = _sheet_path(given.contact_sheet, name) if given.contact_sheet else None
        export_dir = cache.user_path(given.export_tfds) if given.export_tfds else None
        if export_dir:
            tfds_source.new_folder(name, export_dir)
        task = data.load(
            data.DataConfig(
                task=name,
                source=given.source,
                dir=given.data_dir,
                examples=given.examples,
                seed=given.seed,
                workers=given.workers,
                max_len=1,  # of rows of a batch; none is made here
            )
        )
        checked = cache.check(task.folder)
        print(f"{task.name}: {checked / 2**20:,.1f} MiB in {task.folder}, all hashes right.")
        print(f"SHA-256 {task.sha256}{_official(task, info)}\n")
        print(statistics.markdown(task, info.num_classes))
        for row in range(min(given.show, len(task.splits["train"]))):
            print(_example(task, row))
        if sheet:
            _draw(task, sheet)
        if export_dir:
            folder = tfds_source.export(task, export_dir)
            print(f"Written for tensorflow-datasets into {folder}.")
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        sentence = " ".join(str(error).split())
        for theirs, ours in (("--config.data.dir", "--data_dir"), ("--config.data.", "--")):
            sentence = sentence.replace(theirs, ours)  # the flags of run_lra.py
        print(f"lra.data: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lra.data: stopped by Ctrl-C; the same command starts again", file=sys.stderr)
        return 130
    return 0


def _official(task: Task, info: data.TaskInfo) -> str:
    """Says whether these are the data that everybody has, where that is known."""
    if not info.official_sha256:
        return ""
    if task.sha256 == info.official_sha256:
        return ", as prepared from the official files with seed 0."
    return f"; the official files with seed 0 give {info.official_sha256}."


def _example(task: Task, row: int) -> str:
    """A training example, for people."""
    split = task.splits["train"]
    *sequences, label = split[row]
    name = f" ({task.class_names[label]})" if task.class_names else ""
    texts = [task.decode(sequence) for sequence in sequences]
    if not task.image_shape:
        texts = [text if len(text) <= 400 else f"{text[:400]} …" for text in texts]
    kind = "pair" if isinstance(split, PairSplit) else "example"
    return "\n".join([f"Training {kind} {row}, label {label}{name}:", *texts, ""])


def _sheet_path(text: str, task: str) -> Path:
    """Where to draw; refused before anything is prepared."""
    if not data.TASKS[task].pictures:
        raise ValueError(f"{task} has no pictures for a contact sheet; leave it out.")
    path = cache.user_path(text)
    if path.suffix != ".png":
        raise ValueError(f"--contact_sheet needs a name that ends in .png, and got {text!r}.")
    return path


def _terminate(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _draw(task: Task, path: Path) -> None:
    split = task.splits["train"].first(SHEET_IMAGES)
    assert task.image_shape is not None
    assert isinstance(split, Split)
    examples = [split[row] for row in range(len(split))]
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.contact_sheet(
        path,
        [tokens.reshape(task.image_shape) for tokens, _ in examples],
        [task.class_names[label] for _, label in examples],
    )
    print(f"{len(examples)} training images are drawn in {path}.")


if __name__ == "__main__":
    sys.exit(main())
