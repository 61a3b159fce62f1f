"""Input pipeline: deterministic shuffling, batching and prefetching of examples.

The examples are shuffled with the seed, repeated and batched, and each host reads its shard of every batch.
Global batch k depends only on (seed, k) and not on the number of hosts, so a resume needs only the step.
A batch may cross the end of an epoch; no example is dropped.

If the lengths of the examples are known, examples of similar length are batched together to reduce padding:
the examples of `GROUP` batches, or of one epoch if it has fewer, are sorted by length and divided into
batches, which are then shuffled with the seed.

Every batch has `"weights"`, float32 [B]: 1 at real rows, 0 at rows that fill up the last batch of an
evaluation. Training and evaluation can therefore use the same loss function.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Generator

import grain
import numpy as np

Batch = dict[str, np.ndarray]

# Fetching is a NumPy gather. On small hosts Grain's default (16 threads, 500 elements) is slower than no
# prefetching.
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
GROUP = 32  # batches sorted together by length; larger groups are shuffled less


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a split.

    Attributes:
      count: Number of examples.
      make_batch: Returns the batch of the examples at given indices; called in another thread. If `lengths`
        is set, it also takes `longest`, the maximum length in the global batch.
      lengths: Length of each example, [count], to batch examples of similar length. None if all batches
        are padded to the same length.
      curriculum: Examples that training reads first, once, in their order, except those that do not
        fill a batch.
    """

    count: int
    make_batch: Callable[..., Batch]
    lengths: np.ndarray | None = None
    curriculum: "Examples | None" = None

    def fetch(self, rows: np.ndarray, mine: slice = slice(None)) -> Batch:
        """Returns this host's part of a global batch: the examples `rows[mine]`."""
        if self.lengths is None:
            return self.make_batch(rows[mine])
        return self.make_batch(rows[mine], longest=int(self.lengths[rows].max()))


def training_batches(
    examples: Examples,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    shard: int = 0,
    num_shards: int = 1,
) -> Generator[Batch, None, None]:
    """Yields this host's rows of global batches `start_step`, `start_step + 1`, … without end."""
    mine = _rows_of_shard(examples, batch_size, shard, num_shards)
    lengths = examples.lengths
    order = grain.MapDataset.range(examples.count).seed(seed).shuffle().repeat()
    # A group has at most the examples of an epoch. It may cross an epoch's end, and a batch then has two
    # copies of an example; longer groups would have more.
    group_size = max(1, min(GROUP, examples.count // batch_size))
    batches = order.batch(batch_size if lengths is None else group_size * batch_size)

    @functools.lru_cache(maxsize=1)
    def group_of(number: int) -> np.ndarray:
        assert lengths is not None
        rows = np.asarray(batches[number])
        rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(group_size, batch_size)
        return np.random.default_rng((seed, number)).permutation(rows)

    def rows_at(step: int) -> np.ndarray:
        if lengths is None:
            return np.asarray(batches[step])
        group, index = divmod(step, group_size)
        rows: np.ndarray = group_of(group)[index]
        return rows

    easier = examples.curriculum
    easier_steps = easier.count // batch_size if easier else 0

    def fetch(step: int) -> Batch:
        if easier and step < easier_steps:
            batch = easier.fetch(np.arange(step * batch_size, (step + 1) * batch_size), mine)
        else:
            batch = examples.fetch(rows_at(step - easier_steps), mine)
        return {**batch, "weights": np.ones(mine.stop - mine.start, np.float32)}

    return _read(grain.MapDataset.range(start_step, sys.maxsize).map(fetch))


def evaluation_batches(
    examples: Examples, *, batch_size: int, limit: int = 0, shard: int = 0, num_shards: int = 1
) -> Generator[Batch, None, None]:
    """Yields every example once, in order or sorted by length, in the same number of batches on every host.

    Rows of weight 0 fill up the last global batch. `limit` is the maximum number of examples; 0: all.
    """
    mine = _rows_of_shard(examples, batch_size, shard, num_shards)
    count = min(examples.count, limit) if limit else examples.count
    order = np.arange(count)
    if examples.lengths is not None:
        order = np.argsort(examples.lengths[:count], kind="stable")

    def fetch(number: int) -> Batch:
        places = np.arange(number * batch_size, (number + 1) * batch_size)
        batch = examples.fetch(order[np.minimum(places, count - 1)], mine)
        return {**batch, "weights": (places[mine] < count).astype(np.float32)}

    return _read(grain.MapDataset.range(-(-count // batch_size)).map(fetch))


def _read(dataset: grain.MapDataset) -> Generator[Batch, None, None]:
    """Yields prefetched batches; closing the generator closes Grain's iterator and ends the thread."""
    yield from dataset.to_iter_dataset(READ)


def _rows_of_shard(examples: Examples, batch_size: int, shard: int, num_shards: int) -> slice:
    if examples.count < 1:
        raise ValueError("A split needs at least one example; this split has none.")
    if batch_size % num_shards:
        raise ValueError(
            f"A batch of {batch_size} is not divisible by {num_shards} shards: pass a multiple of"
            f" {num_shards}."
        )
    rows = batch_size // num_shards
    return slice(shard * rows, (shard + 1) * rows)
