"""Parallel computation, with results in order."""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_Item = TypeVar("_Item")
_T = TypeVar("_T")


def num_processes(workers: int) -> int:
    """Returns `workers`, or the number of usable CPU cores if `workers` is 0."""
    if workers:
        return workers
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    make: Callable[[_Item], _T], items: Iterable[_Item], num_processes: int
) -> Generator[_T, None, None]:
    """Yields `make(item)` for each item, in order; the caller must close the generator.

    With one process, `make` runs in the calling process. Otherwise `make` must be picklable, and worker
    processes are spawned, not forked, because the caller may have JAX threads. At most two items per
    process are computed ahead of the caller.

    Raises:
      ChildProcessError: A worker process died.
    """
    if num_processes == 1:
        yield from map(make, items)
        return
    executor = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    submitted = (executor.submit(make, item) for item in items)
    try:
        pending = deque(itertools.islice(submitted, 2 * num_processes))
        while pending:
            yield pending.popleft().result()
            pending.extend(itertools.islice(submitted, 1))
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that prepares data died. Check that the calling script has"
            " `if __name__ == '__main__':`. If it has, memory may have run out: set data.workers to 1."
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Makes a worker ignore Ctrl-C, which the parent handles, and exit when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
