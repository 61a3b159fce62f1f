"""What a task's data are like: sizes, labels, lengths, what its splits have in common."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from lra.data import pictures
from lra.data.baselines import baselines
from lra.data.task import PairSplit, Sequences, Split, Task

PERCENTILES = (5, 50, 95)
PICTURES_COUNTED = 1000


@dataclasses.dataclass(frozen=True)
class SplitStatistics:
    """One split in numbers.

    Args:
      examples: rows.
      label_counts: [C].
      lengths: tokens of every sequence that a row has; [N], or [2 N] for pairs.
      contents: digests of the different examples; a pair is the same with its texts swapped.
    """

    examples: int
    label_counts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    contents: frozenset[bytes]


def of_split(split: Split | PairSplit, num_classes: int) -> SplitStatistics:
    """Counts everything there is to count in a split."""
    used = split.pairs.ravel() if isinstance(split, PairSplit) else np.arange(len(split))
    return SplitStatistics(
        examples=len(split),
        label_counts=np.bincount(split.labels, minlength=num_classes),
        lengths=np.diff(split.sequences.offsets)[used],
        contents=frozenset(_digests(split)),
    )


def shared(statistics: Mapping[str, SplitStatistics]) -> dict[tuple[str, str], int]:
    """Different examples that two splits have in common, labels aside, for all pairs of splits."""
    return {
        (one, other): len(statistics[one].contents & statistics[other].contents)
        for one, other in itertools.combinations(statistics, 2)
    }


def markdown(task: Task, num_classes: int) -> str:
    """Tables of sizes, labels and lengths, and what the splits share; for people and for README."""
    rows = [
        f"| {task.name} | examples | different | labels, % | length:"
        f" {', '.join(f'{p} %' for p in PERCENTILES)}, longest |",
        "|---|---|---|---|---|",
    ]
    statistics = {name: of_split(split, num_classes) for name, split in task.splits.items()}
    for name, found in statistics.items():
        shares = 100 * found.label_counts / found.examples
        lengths = [*np.percentile(found.lengths, PERCENTILES), found.lengths.max()]
        rows.append(
            f"| {name} | {found.examples:,} | {len(found.contents):,}"
            f" | {' '.join(f'{share:.1f}' for share in shares)}"
            f" | {', '.join(f'{length:,.0f}' for length in lengths)} |"
        )
    common = [
        f"{count:,} of {one} in {other}" for (one, other), count in shared(statistics).items()
    ]
    rows += ["", f"Examples of one split that are in another: {', '.join(common)}."]
    trivial = ", ".join(f"{name} {100 * score:.2f} %" for name, score in baselines(task).items())
    rows += ["", f"What trivial predictors score on the test set: {trivial}."]
    pairs = [split.pairs for split in task.splits.values() if isinstance(split, PairSplit)]
    if pairs:
        texts = np.unique(np.concatenate(pairs))
        rows += ["", f"The pairs are of {len(texts):,} different texts."]
    if task.image_shape:
        rows += ["", _pixels(task)]
    if task.notes:
        rows += ["", task.notes(task)]
    return "\n".join(rows) + "\n"


def _digests(split: Split | PairSplit) -> Iterator[bytes]:
    """A digest of every row's tokens."""
    sequences = split.sequences
    if isinstance(split, PairSplit):
        known = {number: _digest(sequences, number) for number in np.unique(split.pairs).tolist()}
        for pair in split.pairs.tolist():
            first, second = sorted(known[number] for number in pair)
            yield first + second
    else:
        yield from (_digest(sequences, number) for number in range(len(split)))


def _digest(sequences: Sequences, number: int) -> bytes:
    start, stop = sequences.offsets[number], sequences.offsets[number + 1]
    return hashlib.blake2b(sequences.tokens[start:stop].data, digest_size=16).digest()


def _pixels(task: Task) -> str:
    images = pictures.first_images(task, PICTURES_COUNTED)
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
