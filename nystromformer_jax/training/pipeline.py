"""Host batches: an order of indices, and a task's vectorised fetch behind one prefetch thread.

Order: seed, shuffle, repeat, batch by B / hosts, then `slice(host::hosts)`. The rows of global batch
k are therefore the same for any number of hosts and a pure function of (seed, k), so resuming
needs the step alone. An epoch's end falls inside a batch; no example is dropped.

Every batch carries `"weights"`, float32 [B]: 1 at real rows, 0 at rows that only fill up the last
batch of an evaluation. One loss function then serves training and evaluation.
"""

import dataclasses
from collections.abc import Callable, Generator

import grain
import numpy as np

__all__ = ["Batch", "Examples", "evaluation_batches", "training_batches"]

Batch = dict[str, np.ndarray]

# One thread and two batches ahead: fetching is a NumPy gather, and on small hosts Grain's default
# of 16 threads and 500 elements is slower than no thread at all.
READ = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)


@dataclasses.dataclass(frozen=True)
class Examples:
    """A split as the pipeline sees it.

    Attributes:
        count: How many examples there are.
        make_batch: Fetches the examples with these indices; called from another thread.
    """

    count: int
    make_batch: Callable[[np.ndarray], Batch]


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
    _require_examples(examples.count)
    order = grain.MapDataset.range(examples.count).seed(seed).shuffle().repeat()
    batches = order.batch(_rows_per_host(batch_size, hosts))
    mine = batches.slice(slice(start_step * hosts + host, None, hosts))
    return _read(mine.map(lambda indices: _with_weights(examples, indices)))


def evaluation_batches(
    examples: Examples, *, batch_size: int, limit: int = 0, host: int = 0, hosts: int = 1
) -> Generator[Batch, None, None]:
    """Yields every example once, in order; all hosts get the same number of batches.

    Args:
        examples: The split.
        batch_size: Rows of a global batch; the last one is filled up with rows of weight 0.
        limit: The first so many examples only; 0 means all.
        host: This host's number.
        hosts: How many hosts there are.
    """
    _require_examples(examples.count)
    count = min(examples.count, limit) if limit else examples.count
    filled = -(-count // batch_size) * batch_size
    batches = grain.MapDataset.range(filled).batch(_rows_per_host(batch_size, hosts))
    mine = batches.slice(slice(host, None, hosts))
    return _read(mine.map(lambda indices: _with_weights(examples, indices, count)))


def _read(dataset: grain.MapDataset) -> Generator[Batch, None, None]:
    """Reads ahead; closing the generator closes Grain's iterator and ends its thread."""
    yield from dataset.to_iter_dataset(READ)


def _with_weights(examples: Examples, indices: np.ndarray, count: int | None = None) -> Batch:
    """Fetches a batch; indices from `count` on repeat the last example with weight 0."""
    count = examples.count if count is None else count
    batch = examples.make_batch(np.minimum(indices, count - 1))
    return {**batch, "weights": (indices < count).astype(np.float32)}


def _rows_per_host(batch_size: int, hosts: int) -> int:
    if batch_size % hosts:
        raise ValueError(
            f"a batch of {batch_size} cannot be shared by {hosts} hosts: pass a multiple of {hosts}."
        )
    return batch_size // hosts


def _require_examples(count: int) -> None:
    if count < 1:
        raise ValueError("a split needs at least one example, this one has none.")
