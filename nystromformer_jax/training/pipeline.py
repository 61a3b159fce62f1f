"""Host batches: an order of indices, and a task's vectorized fetch behind one prefetch thread.

Order: seed, shuffle, repeat, batch; each host takes its part of the rows of every batch. The rows of
global batch k are therefore the same for any number of hosts and a pure function of (seed, k), so a resume
needs only the step. A batch may cross the end of an epoch; no example is dropped.

If the lengths of the examples are known, batches hold examples of similar length: the examples of `GROUP`
batches are sorted by length and split again, and the seed shuffles the batches. They are then padded to
little more than their longest example.

Every batch has `"weights"`, float32 [B]: 1 at real rows, 0 at rows that fill up the last batch of an
evaluation, so that one loss function serves training and evaluation.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Generator

import grain
import numpy as np

Batch = dict[str, np.ndarray]

# Fetching is a NumPy gather: on small hosts Grain's default of 16 threads and 500 elements is slower than
# no thread at all.
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
GROUP = 32  # batches sorted together by length; more make the shuffle coarser


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a split.

    Attributes:
        count: Number of examples.
        make_batch: Fetches the examples at given indices, in another thread. With `lengths` it also takes
            `longest`, the maximum length in the batch over all hosts.
        lengths: Length of each example, [count], to batch examples of similar length; None if all batches
            have the same padding.
    """

    count: int
    make_batch: Callable[..., Batch]
    lengths: np.ndarray | None = None

    def fetch(self, rows: np.ndarray, mine: slice = slice(None)) -> Batch:
        """Fetches this host's part `mine` of the examples `rows` of a global batch."""
        if self.lengths is None:
            return self.make_batch(rows[mine])
        return self.make_batch(rows[mine], longest=int(self.lengths[rows].max()))


def training_batches(
    examples: Examples,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    host: int = 0,
    hosts: int = 1,
) -> Generator[Batch, None, None]:
    """Yields this host's rows of global batches `start_step`, `start_step + 1`, … without end."""
    mine = _rows_of_host(examples, batch_size, host, hosts)
    lengths = examples.lengths
    order = grain.MapDataset.range(examples.count).seed(seed).shuffle().repeat()
    batches = order.batch(batch_size if lengths is None else GROUP * batch_size)

    @functools.lru_cache(maxsize=1)
    def group_of(number: int) -> np.ndarray:
        assert lengths is not None
        rows = np.asarray(batches[number])
        rows = rows[np.argsort(lengths[rows], kind="stable")].reshape(GROUP, batch_size)
        return np.random.default_rng((seed, number)).permutation(rows)

    def rows_at(step: int) -> np.ndarray:
        if lengths is None:
            return np.asarray(batches[step])
        group, index = divmod(step, GROUP)
        rows: np.ndarray = group_of(group)[index]
        return rows

    def fetch(step: int) -> Batch:
        batch = examples.fetch(rows_at(step), mine)
        return {**batch, "weights": np.ones(mine.stop - mine.start, np.float32)}

    return _read(grain.MapDataset.range(start_step, sys.maxsize).map(fetch))


def evaluation_batches(
    examples: Examples, *, batch_size: int, limit: int = 0, host: int = 0, hosts: int = 1
) -> Generator[Batch, None, None]:
    """Yields every example once, in order or sorted by length; every host has the same number of batches.

    Rows of weight 0 fill up the last global batch. A `limit` other than 0 is the number of examples.
    """
    mine = _rows_of_host(examples, batch_size, host, hosts)
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
    """Prefetches; closing the generator closes Grain's iterator and ends its thread."""
    yield from dataset.to_iter_dataset(READ)


def _rows_of_host(examples: Examples, batch_size: int, host: int, hosts: int) -> slice:
    if examples.count < 1:
        raise ValueError("a split needs at least one example, this one has none.")
    if batch_size % hosts:
        raise ValueError(
            f"a batch of {batch_size} is not divisible by {hosts} hosts: pass a multiple of {hosts}."
        )
    rows = batch_size // hosts
    return slice(host * rows, (host + 1) * rows)
