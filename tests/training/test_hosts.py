"""Several processes of this machine as one run: the same numbers, one end for all, others after them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from nystromformer_jax.training import HostsConfig, MeshConfig, host_share, make_mesh
from tests.helpers import REFERENCE, assert_close
from tests.training import tiny

ROOT = Path(__file__).parents[2]


def start(count, workdir, seconds=0.0):
    """Processes of one CPU device each."""
    command = [sys.executable, "launch/local.py", str(count), "tests/training/tiny.py"]
    return subprocess.Popen(
        [*command, str(workdir), str(seconds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", "NPROC": "8"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def pid_of(run, number):
    """The process that a run's launcher names as the number-th."""
    while line := run.stdout.readline():
        if found := re.match(rf"\[{number}\] started as process (\d+)", line):
            return int(found[1])
    raise AssertionError("it was never started")


def wait_for_lines(workdir, count):
    metrics, deadline = workdir / "metrics.jsonl", time.monotonic() + 120
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run writes nothing"
        time.sleep(0.02)


def same_numbers(workdir, other):
    """Sums over devices are added in another order, so not to the bit."""
    one, two = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (workdir, other)
    )
    assert_close(one, two, REFERENCE)
    assert_close(tiny.last_params(workdir, 60), tiny.last_params(other, 60), REFERENCE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    tiny.train(folder, tiny.config(60, events=True))
    return folder


def test_a_signal_to_one_stops_both_at_a_step_and_four_go_on(alone, tmp_path):
    run = start(2, tmp_path, seconds=0.05)
    second = pid_of(run, 1)
    wait_for_lines(tmp_path, 3)
    os.kill(second, signal.SIGTERM)
    said, _ = run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGTERM, said
    stopped = re.findall(r"\[(\d)\] Stopped by SIGTERM after step (\d+) of 60, everything", said)
    assert sorted(number for number, _ in stopped) == ["0", "1"]
    assert len({step for _, step in stopped}) == 1
    run = start(4, tmp_path)
    said, _ = run.communicate(timeout=200)
    assert run.returncode == 0, said
    assert f"Going on from step {stopped[0][1]} of 60" in said
    same_numbers(tmp_path, alone)


@pytest.mark.slow(minutes=1)
def test_the_death_of_one_ends_the_others_in_a_minute_and_one_goes_on_alone(alone, tmp_path):
    run = start(2, tmp_path, seconds=0.05)
    second = pid_of(run, 1)
    wait_for_lines(tmp_path, 6)
    os.kill(second, signal.SIGKILL)
    killed = time.monotonic()
    said, _ = run.communicate(timeout=120)
    assert time.monotonic() - killed < 60
    assert run.returncode != 0
    ours = r"\[0\] Process 0 of 2 lost another one \(.*Start all of them again"
    jaxs = r"\[0\] .*This most likely indicates that another task died"  # while it waits for a save
    assert re.search(f"{ours}|{jaxs}", said), said
    tiny.train(tmp_path, tiny.config(60, events=True))
    same_numbers(tmp_path, alone)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"coordinator": "here:1234"}, "go together"),
        ({"num_processes": 2, "process_id": 0}, "go together"),
        ({"coordinator": "here", "num_processes": 2, "process_id": 0}, "such as 10"),
        ({"coordinator": "here:1", "num_processes": 2, "process_id": 2}, "from 0 to 1"),
        (
            {"coordinator": "h:1", "num_processes": 2, "process_id": 0, "distributed": True},
            "pass one of them",
        ),
    ],
)
def test_processes_that_are_named_wrongly_are_refused_in_words(values, words):
    with pytest.raises(ValueError, match=words):
        HostsConfig(**values)


class FakeDevice:
    def __init__(self, process_index):
        self.process_index = process_index


class FakeMesh:
    """Four hosts of two devices."""

    def __init__(self, rows):
        self.devices = np.array([[FakeDevice(host) for host in row] for row in rows])
        self.shape = {"data": len(rows), "sequence": len(rows[0])}


@pytest.mark.usefixtures("no_annotations")
@pytest.mark.parametrize(
    ("rows", "shares"),
    [
        ([[0], [0], [1], [1], [2], [2], [3], [3]], [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([[0, 0], [1, 1], [2, 2], [3, 3]], [(0, 4), (1, 4), (2, 4), (3, 4)]),
        ([[0, 0, 1, 1], [2, 2, 3, 3]], [(0, 2), (0, 2), (1, 2), (1, 2)]),
        ([[0, 0, 1, 1, 2, 2, 3, 3]], [(0, 1)] * 4),
        ([[0, 1], [0, 1], [2, 3], [2, 3]], [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
)
def test_hosts_that_split_only_the_length_read_the_same_rows(rows, shares):
    assert [host_share(FakeMesh(rows), host) for host in range(4)] == shares


@pytest.mark.usefixtures("no_annotations")
def test_shares_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="share their rows unevenly"):
        host_share(FakeMesh([[0, 0], [0, 1], [1, 1]]), 0)


def test_one_process_has_all_rows():
    assert host_share(make_mesh(MeshConfig(data=2, sequence=4))) == (0, 1)
    assert jax.process_count() == 1
