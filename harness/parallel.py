"""Numbered pieces of work on several processes, given back in order."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_T = TypeVar("_T")


def num_processes(workers: int) -> int:
    """`workers`, or one for every core we may use where that is 0."""
    if workers:
        return workers
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(make: Callable[[int], _T], num_processes: int) -> Generator[_T, None, None]:
    """Yields `make(0)`, `make(1)`, ... without end; close it when there is enough.

    With one process everything happens here. More are spawned, not forked, because the caller may
    run the threads of JAX; `make` must therefore be picklable. At most two pieces a process are
    ahead of the caller.

    Raises:
      ChildProcessError: a process died.
    """
    if num_processes == 1:
        i = 0
        while True:
            yield make(i)
            i += 1
    executor = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    try:
        ahead: deque[Future[_T]] = deque()
        i = 0
        while True:
            while len(ahead) < 2 * num_processes:
                ahead.append(executor.submit(make, i))
                i += 1
            yield ahead.popleft().result()
    except BrokenProcessPool as error:
        raise ChildProcessError(
            "A process that prepares data died. Is the calling script without"
            " `if __name__ == '__main__':`? Otherwise memory may be short: set data.workers to 1."
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent, and ends this process with the parent, even after kill -9."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
