"""Statistics of the data of a task: sizes, labels, lengths, examples shared by splits."""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lra.data.baselines import baselines
from lra.data.task import Split, Task
from reporting.tables import lengths_cell
from reporting.tables import markdown as markdown_table

MAX_CLASSES = 20  # with more classes, only the range of their shares is shown


def markdown(task: Task, num_classes: int) -> str:
    """Returns the statistics as Markdown: sizes, labels, lengths, shared examples, trivial predictors."""
    contents = {name: set(_digests(split)) for name, split in task.splits.items()}
    table = []
    for name, split in task.splits.items():
        counts = np.bincount(split.labels.ravel(), minlength=num_classes)
        table.append(
            {
                task.name: name,
                "examples": f"{len(split):,}",
                "distinct": f"{len(contents[name]):,}",
                "labels, %": _shares(100 * counts / counts.sum()),
                **lengths_cell(split.sequences.lengths[split.numbers.ravel()]),
            }
        )
    shared = ", ".join(  # whatever their labels are
        f"{len(contents[one] & contents[other]):,} of {one} in {other}"
        for one, other in itertools.combinations(contents, 2)
    )
    scores = ", ".join(f"{name} {100 * score:.2f} %" for name, score in baselines(task).items())
    paragraphs = [
        f"{markdown_table(table)}\nExamples that splits share: {shared}.",
        f"Test accuracy of trivial predictors: {scores}.",
    ]
    if task.splits["train"].pairs is not None:
        texts = np.unique(np.concatenate([split.numbers for split in task.splits.values()]))
        paragraphs += [f"The pairs consist of {len(texts):,} distinct texts."]
    return "\n\n".join(paragraphs) + "\n"


def _shares(shares: npt.NDArray[np.float64]) -> str:
    """Returns the shares of the classes in percent, or their range if there are many."""
    if len(shares) > MAX_CLASSES:
        return f"{shares.min():.1f} to {shares.max():.1f}"
    return " ".join(f"{share:.1f}" for share in shares)


def _digests(split: Split) -> Iterator[bytes]:
    """Yields a digest of the tokens of each row; the order of a pair is ignored."""
    tokens, offsets = split.sequences.tokens, split.sequences.offsets
    known = {
        number: hashlib.blake2b(
            tokens[offsets[number] : offsets[number + 1]].data, digest_size=16
        ).digest()
        for number in np.unique(split.numbers).tolist()
    }
    for numbers in split.numbers.tolist():
        yield b"".join(sorted(known[number] for number in numbers))
