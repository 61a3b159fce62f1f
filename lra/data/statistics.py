"""Statistics of the data of a task: sizes, labels, lengths, examples shared by splits."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from lra.data.baselines import baselines
from lra.data.task import Sequences, Split, Task
from reporting.tables import lengths_cell
from reporting.tables import markdown as markdown_table

MAX_CLASSES = 20  # with more classes, only the range of their shares is shown
MAX_IMAGES = 1000  # images used for the distribution of pixel values


@dataclasses.dataclass(frozen=True)
class SplitStatistics:
    """Statistics of one split of N examples."""

    examples: int  # N
    label_counts: npt.NDArray[np.int64]  # [C]
    lengths: npt.NDArray[np.int64]  # tokens of each sequence, [N], or [2 N] for pairs
    contents: frozenset[bytes]  # digests of the distinct examples; the order of a pair is ignored


def split_statistics(split: Split, num_classes: int) -> SplitStatistics:
    """Computes the statistics of a split."""
    used = np.arange(len(split)) if split.pairs is None else split.pairs.ravel()
    return SplitStatistics(
        examples=len(split),
        label_counts=np.bincount(split.labels.ravel(), minlength=num_classes),
        lengths=np.diff(split.sequences.offsets)[used],
        contents=frozenset(_digests(split)),
    )


def shared_examples(statistics: Mapping[str, SplitStatistics]) -> dict[tuple[str, str], int]:
    """Returns the number of distinct examples that two splits share, by pair of splits; ignores labels."""
    return {
        (one, other): len(statistics[one].contents & statistics[other].contents)
        for one, other in itertools.combinations(statistics, 2)
    }


def markdown(task: Task, num_classes: int) -> str:
    """Returns the statistics as Markdown: sizes, labels, lengths, shared examples, trivial predictors."""
    statistics = {name: split_statistics(split, num_classes) for name, split in task.splits.items()}
    table = [
        {
            task.name: name,
            "examples": f"{found.examples:,}",
            "distinct": f"{len(found.contents):,}",
            "labels, %": _shares(100 * found.label_counts / found.label_counts.sum()),
            **lengths_cell(found.lengths),
        }
        for name, found in statistics.items()
    ]
    paragraphs = [markdown_table(table)]
    overlaps = [
        f"{count:,} of {one} in {other}"
        for (one, other), count in shared_examples(statistics).items()
    ]
    paragraphs += [f"Examples that splits share: {', '.join(overlaps)}."]
    scores = ", ".join(f"{name} {100 * score:.2f} %" for name, score in baselines(task).items())
    paragraphs += ["", f"Test accuracy of trivial predictors: {scores}."]
    pairs = [split.pairs for split in task.splits.values() if split.pairs is not None]
    if pairs:
        texts = np.unique(np.concatenate(pairs))
        paragraphs += ["", f"The pairs consist of {len(texts):,} distinct texts."]
    if task.image_shape:
        paragraphs += ["", _pixel_distribution(task)]
    if task.notes:
        paragraphs += ["", task.notes(task)]
    return "\n".join(paragraphs) + "\n"


def _shares(shares: npt.NDArray[np.float64]) -> str:
    """Returns the shares of the classes in percent, or their range if there are many."""
    if len(shares) > MAX_CLASSES:
        return f"{shares.min():.1f} to {shares.max():.1f}"
    return " ".join(f"{share:.1f}" for share in shares)


def _digests(split: Split) -> Iterator[bytes]:
    """Yields a digest of the tokens of each row."""
    sequences = split.sequences
    if split.pairs is not None:
        known = {number: _digest(sequences, number) for number in np.unique(split.pairs).tolist()}
        for pair in split.pairs.tolist():
            first, second = sorted(known[number] for number in pair)
            yield first + second
    else:
        yield from (_digest(sequences, number) for number in range(len(split)))


def _digest(sequences: Sequences, number: int) -> bytes:
    start, stop = sequences.offsets[number], sequences.offsets[number + 1]
    return hashlib.blake2b(sequences.tokens[start:stop].data, digest_size=16).digest()


def _pixel_distribution(task: Task) -> str:
    images = task.first_images(MAX_IMAGES)
    edges = (0, 1, 17, 65, 129, 201, 256)
    shares = np.histogram(images, edges)[0] / images.size
    bins = [
        f"{low}–{high - 1}" if high > low + 1 else str(low)
        for low, high in itertools.pairwise(edges)
    ]
    return (
        f"Pixels of {len(images):,} training images: mean {images.mean():.2f}, standard deviation"
        f" {images.std():.2f}; shares: "
        + ", ".join(f"{name}: {share:.4f}" for name, share in zip(bins, shares, strict=True))
        + "."
    )
