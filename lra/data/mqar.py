"""Multi-query associative recall: key-value pairs, then queries with masked answers.

    k7 v3 k2 v9 … k7 ? . . k2 ? .       the answers are v3 and v9

A sequence has K distinct keys with random values. Each key occurs once more, at a random place after the
pairs, before a masked token, whose label is the value. The data are generated from a seed.

Source: Arora et al. 2023, arXiv:2312.04927, and HazyResearch/zoology, `zoology/data/multiquery_ar.py`.
Differs: bidirectional (the answer is masked, not predicted from the left), queries at uniform places, 126
keys and 128 values instead of 4,096 of each.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep import cache
from lra.data.task import DataConfig, Sequences, Split, Task, TaskInfo

SIZES: Mapping[str, int] = {"train": 40_000, "valid": 1_000, "test": 1_000}
BLANK, MASK, FIRST_KEY, FIRST_VALUE = 0, 1, 2, 128
VOCAB_SIZE = 256
NUM_KEYS, NUM_CLASSES = FIRST_VALUE - FIRST_KEY, VOCAB_SIZE - FIRST_VALUE

# Part of the fingerprint: increase it when a change of the code changes the generated data.
FORMAT = 1


def size_of(task: str) -> tuple[int, int] | None:
    """Returns length and number of pairs of a task `mqar-LENGTH-PAIRS`; None for other names.

    Raises:
      ValueError: The sequence has too few tokens for the pairs, or there are too few keys.
    """
    size = re.fullmatch(r"mqar-(\d+)-(\d+)", task)
    if size is None:
        return None
    length, pairs = int(size[1]), int(size[2])
    if not 1 <= pairs <= min(length // 4, NUM_KEYS):
        raise ValueError(
            f"MQAR with {length} tokens needs 1 to {min(length // 4, NUM_KEYS)} pairs, got {pairs}: a pair"
            f" takes two tokens, its query two more, and there are {NUM_KEYS} keys."
        )
    return length, pairs


def describe(length: int, pairs: int) -> TaskInfo:
    """Returns the properties of a task with these sizes."""
    return TaskInfo(
        vocab_size=VOCAB_SIZE,
        num_classes=NUM_CLASSES,
        load=functools.partial(load, length=length, pairs=pairs),
        sizes=SIZES,
        total_steps=600,
        targets=pairs,
        min_len=length,
    )


def most_frequent(pairs: int) -> float:
    """Returns the expected accuracy of answering all queries with the most frequent value, by simulation."""
    values = np.sort(np.random.default_rng(0).integers(NUM_CLASSES, size=(10_000, pairs)))
    run = best = np.ones(len(values), int)  # length of the current and of the longest run
    for column in range(1, pairs):
        run = np.where(values[:, column] == values[:, column - 1], run + 1, 1)
        best = np.maximum(best, run)
    return float(best.mean() / pairs)


def load(config: DataConfig, *, length: int, pairs: int) -> Task:
    """Opens a task; generates the data if they are missing.

    Raises:
      ValueError: `dir` or `source` selects files, which do not exist.
    """
    config.choose_source("MQAR", ("generated",))
    name = f"mqar-{length}-{pairs}"
    counts = {split: min(config.examples or size, size) for split, size in SIZES.items()}
    fingerprint: dict[str, Any] = {"task": name, "format": FORMAT, "sizes": counts}
    fingerprint["seed"] = config.seed
    build = functools.partial(_build, counts=counts, length=length, pairs=pairs, seed=config.seed)
    description = f"MQAR: {sum(counts.values()):,} sequences of {length} tokens, {pairs} pairs"
    return Task.open(name, cache.prepared(name, fingerprint, build, description), decode)


def decode(tokens: npt.NDArray[np.integer]) -> str:
    """Converts tokens to text: keys as k0 …, values as v0 …, ? for masked tokens, . for blanks."""
    return " ".join(_word(token) for token in np.asarray(tokens).tolist())


def _word(token: int) -> str:
    if token >= FIRST_VALUE:
        return f"v{token - FIRST_VALUE}"
    if token >= FIRST_KEY:
        return f"k{token - FIRST_KEY}"
    return "?" if token == MASK else "."


def generate(
    count: int, *, length: int, pairs: int, rng: np.random.Generator
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Returns `count` sequences [N, L], and positions and labels of their masked tokens [N, K].

    Draws only uniform numbers, whose values are the same in all versions of NumPy.
    """
    num_slots = (length - 2 * pairs) // 2
    # One draw per sequence, so that the first sequences do not depend on `count`.
    draws = rng.random((count, NUM_KEYS + num_slots + pairs))
    keys = FIRST_KEY + draws[:, :NUM_KEYS].argsort(axis=1)[:, :pairs]
    slots = draws[:, NUM_KEYS : NUM_KEYS + num_slots].argsort(axis=1)[:, :pairs]
    labels = (draws[:, NUM_KEYS + num_slots :] * NUM_CLASSES).astype(np.int32)
    queries = 2 * pairs + 2 * slots  # positions of the second occurrence of the keys
    tokens = np.full((count, length), BLANK, np.uint8)
    tokens[:, 0 : 2 * pairs : 2] = keys
    tokens[:, 1 : 2 * pairs : 2] = FIRST_VALUE + labels
    np.put_along_axis(tokens, queries, keys.astype(np.uint8), axis=1)
    positions = queries + 1
    np.put_along_axis(tokens, positions, np.uint8(MASK), axis=1)
    return tokens, positions.astype(np.int32), labels


def _build(folder: Path, *, counts: Mapping[str, int], length: int, pairs: int, seed: int) -> None:
    for number, (split, count) in enumerate(counts.items()):
        rng = np.random.default_rng([seed, number])
        tokens, positions, labels = generate(count, length=length, pairs=pairs, rng=rng)
        sequences = Sequences.from_bytes([row.tobytes() for row in tokens])
        Split(sequences, labels, positions=positions).save(folder, split)
