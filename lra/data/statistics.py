"""Describes the data of a task: hashes, sizes, labels, lengths, examples shared by splits."""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from dataprep import cache
from lra.data.baselines import baselines
from lra.data.task import Split, Task, TaskInfo
from reporting.tables import lengths_cell
from reporting.tables import markdown as markdown_table

EXAMPLES = 2  # training examples in a description
MAX_CLASSES = 20  # with more classes, only the range of their shares is shown


def describe_data(task: Task, info: TaskInfo) -> str:
    """Checks all hashes of a task's data; returns hashes, statistics and the first training examples."""
    num_bytes = cache.check(task.folder)
    official = ""
    if info.official_sha256 == task.sha256:
        official = ", as prepared from the official files with seed 0."
    elif info.official_sha256:
        official = f"; the hash of the official files with seed 0 is {info.official_sha256}."
    shown = range(min(EXAMPLES, len(task.splits["train"])))
    return "\n".join(
        [
            f"{task.name}: {num_bytes / 2**20:,.1f} MiB in {task.folder}, all hashes verified.",
            f"SHA-256 {task.sha256}{official}\n",
            markdown(task, info.num_classes),
            *(_format_example(task, row, is_image=bool(info.num_pixels)) for row in shown),
        ]
    )


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
