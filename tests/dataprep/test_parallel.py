import itertools
import operator
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import lra
from dataprep import parallel

REPOSITORY = pathlib.Path(lra.__file__).parents[1]

# Runs the function named on the command line in two processes, prints their ids, and waits.
PARENT = """
import multiprocessing, operator, signal, sys, time
from dataprep import parallel

if __name__ == "__main__":
    # A shell that runs the tests in the background lets its processes ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pieces = parallel.in_order(eval(sys.argv[1]), range(1000), 2)
    next(pieces), next(pieces)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    sys.stdin.readline()
"""


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize("num_processes", [1, 2])
def test_pieces_come_in_order(num_processes):
    found = list(parallel.in_order(operator.neg, range(7), num_processes))
    assert found == [0, -1, -2, -3, -4, -5, -6]
    endless = parallel.in_order(operator.neg, itertools.count(5), num_processes)
    assert list(itertools.islice(endless, 2)) == [-5, -6]
    endless.close()


def test_raises_the_error_of_a_worker():
    with pytest.raises(TypeError):
        next(parallel.in_order(len, [3], 2))


def test_reports_a_worker_that_died():
    with pytest.raises(ChildProcessError, match=r"process that prepares data died.*data\.workers"):
        next(parallel.in_order(os._exit, [3], 2))


def start_parent(function):
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
    )


def test_workers_ignore_ctrl_c():
    parent = start_parent("operator.neg")
    assert len(parent.stdout.readline().split()) == 2
    time.sleep(0.3)  # until both are idle
    os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to parent and children
    _, errors = parent.communicate(timeout=20)
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="reads /proc")
def test_workers_end_if_the_parent_is_killed():
    parent = start_parent("time.sleep")
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    assert all(map(is_running, pids))
    parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    parent.communicate()
    assert left == []
