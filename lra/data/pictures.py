"""Pictures as tokens, made visible: as lines of text, and many together as one PNG."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.whole_files import write_whole
from lra.data.task import Task

SHADES = " .:-=+*#%@"  # dark to bright
MAX_COLUMNS = 64  # of text; a larger picture is averaged down


def as_text(pixels: npt.NDArray[np.integer], shape: tuple[int, int]) -> str:
    """A picture of `shape` rows and columns, 0 to 255, as text; a character is two rows high."""
    rows, columns = shape
    step = max(1, columns // MAX_COLUMNS)
    kept = np.asarray(pixels)[: rows * columns]
    image = np.zeros(rows * columns)
    image[: len(kept)] = kept  # what was cut off is black
    blocks = image.reshape(rows // (2 * step), 2 * step, columns // step, step).mean(axis=(1, 3))
    shades = (blocks * len(SHADES) / 256).astype(int)
    return "\n".join("".join(SHADES[shade] for shade in line).rstrip() for line in shades)


def first_images(task: Task, count: int) -> npt.NDArray[np.uint8]:
    """The first training images of a task whose sequences are images, [N, rows, columns]."""
    assert task.image_shape is not None
    train = task.splits["train"]
    count = min(count, len(train))
    size = task.image_shape[0] * task.image_shape[1]
    return train.sequences.tokens[: count * size].reshape(count, *task.image_shape)


def contact_sheet(
    path: Path,
    images: Sequence[npt.NDArray[np.integer]],
    captions: Sequence[str],
    *,
    columns: int = 8,
) -> None:
    """Writes square images [R, R], 0 to 255, with their captions as one PNG, `columns` side by side."""
    from PIL import Image, ImageDraw

    scale = max(1, 96 // len(images[0]))
    side, gap, caption_height = len(images[0]) * scale, 6, 14
    cell_width, cell_height = side + gap, side + gap + caption_height
    rows = -(-len(images) // columns)
    sheet = Image.new("L", (columns * cell_width + gap, rows * cell_height + gap), 255)
    writer = ImageDraw.Draw(sheet)
    for number, (pixels, caption) in enumerate(zip(images, captions, strict=True)):
        left = gap + number % columns * cell_width
        top = gap + number // columns * cell_height
        image = Image.fromarray(np.kron(pixels, np.ones((scale, scale))).astype(np.uint8))
        sheet.paste(image, (left, top))
        writer.text((left, top + side + 1), caption, fill=0)
    content = io.BytesIO()
    sheet.save(content, format="PNG", optimize=True)
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        raise OSError(
            f"{path} cannot be written ({error.strerror}): choose another place."
        ) from error
