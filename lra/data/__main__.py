"""Prepares, verifies and describes the data of a task: `python -m lra.data listops`."""

import argparse
import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cli.commands import parser_of, run_to_end
from dataprep import cache
from lra import data
from lra.data import statistics, tfds_source
from lra.data.task import Task
from nystromformer_jax.support.durable import write_bytes

SHEET_IMAGES = 32


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
    parser.add_argument("--contact_sheet", default="", help="PNG file for training images")
    parser.add_argument("--export_tfds", default="", help="folder for a tensorflow-datasets export")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    flags = {f"data.{key}": f"--{key}" for key in ("source", "examples", "seed", "workers")}
    return run_to_end("lra.data", lambda: _report(given), {**flags, "data.dir": "--data_dir"})


def _report(given: argparse.Namespace) -> None:
    info = data.describe(given.task)
    sheet = cache.user_path(given.contact_sheet) if given.contact_sheet else None
    if sheet and not info.num_pixels:
        raise ValueError(f"{given.task} has no images: leave out --contact_sheet.")
    if sheet and sheet.suffix != ".png":
        raise ValueError(f"--contact_sheet must end in .png, got {given.contact_sheet!r}.")
    export_dir = cache.user_path(given.export_tfds) if given.export_tfds else None
    if export_dir and info.targets:
        raise ValueError(f"{given.task} has labeled tokens: leave out --export_tfds.")
    if export_dir and given.task in data.TASKS:  # another package's task has its name after loading
        tfds_source.new_folder(given.task, export_dir)
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
        print(_format_example(task, row))
    if sheet:
        labels = task.splits["train"].labels[:SHEET_IMAGES].tolist()
        captions = [task.class_names[label] if task.class_names else str(label) for label in labels]
        contact_sheet(sheet, task.first_images(SHEET_IMAGES), captions)
        print(f"{len(labels)} training images are in {sheet}.")
    if export_dir:
        folder = tfds_source.export(task, export_dir)
        print(f"Exported for tensorflow-datasets to {folder}.")


def _format_example(task: Task, row: int) -> str:
    """Returns the training example in `row` as text."""
    split = task.splits["train"]
    *sequences, label = split[row]
    names = [task.class_names[one] for one in np.ravel(label)] if task.class_names else []
    name = f" ({', '.join(names)})" if names else ""
    texts = [task.decode(sequence) for sequence in sequences]
    if not task.image_shape:
        texts = [text if len(text) <= 400 else f"{text[:400]} …" for text in texts]
    kind = "example" if split.pairs is None else "pair"
    return "\n".join([f"Training {kind} {row}, label {label}{name}:", *texts, ""])


def contact_sheet(
    path: Path, images: npt.NDArray[np.integer], captions: Sequence[str], *, columns: int = 8
) -> None:
    """Writes images [N, R, R], 0 to 255, with their captions to a PNG, `columns` images per row."""
    from PIL import Image, ImageDraw

    scale = max(1, 96 // len(images[0]))
    side, gap, caption_height = len(images[0]) * scale, 6, 14
    cell_width, cell_height = side + gap, side + gap + caption_height
    rows = -(-len(images) // columns)
    sheet = Image.new("L", (columns * cell_width + gap, rows * cell_height + gap), 255)
    writer = ImageDraw.Draw(sheet)
    for i, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        left, top = gap + i % columns * cell_width, gap + i // columns * cell_height
        image = Image.fromarray(np.kron(pixels, np.ones((scale, scale))).astype(np.uint8))
        sheet.paste(image, (left, top))
        writer.text((left, top + side + 1), caption, fill=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    sheet.save(content, format="PNG", optimize=True)
    try:
        write_bytes(path, content.getvalue())
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}): choose another path."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
