"""Several processes of this machine as one run: the same numbers, and one exit code for all."""

import os
import re
import signal
import socket
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from launch import local
from nystromformer_jax.training import (
    HostsConfig,
    MeshConfig,
    ProcessLost,
    WorkdirBusy,
    data_shard,
    detect_lost_process,
    make_mesh,
    shutdown,
)
from tests import programs
from tests.helpers import REFERENCE, assert_close
from tests.programs import finish, wait_for_lines
from tests.training import tiny

TOO_LONG = 2 * programs.SECONDS  # a process that sleeps so long fails its test unless it is stopped


def start(count, workdir, seconds=0.0):
    """Processes of one CPU device each."""
    command = ("launch/local.py", count, "tests/training/tiny.py", workdir, seconds)
    return programs.start(*command, NPROC=8)


def pid_of(run, number):
    """Returns the process id that the launcher logged for process `number`."""
    while line := run.stdout.readline():
        if found := re.match(rf"\[{number}\] started as process (\d+)", line):
            return int(found[1])
    raise AssertionError("it was never started")


def same_numbers(workdir, other):
    """Compares up to rounding, because sums over devices have another order."""
    one, two = tiny.lines_of(workdir), tiny.lines_of(other)
    assert_close(one, two, REFERENCE)
    assert_close(tiny.last_params(workdir, 30), tiny.last_params(other, 30), REFERENCE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    tiny.train(folder)
    return folder


@pytest.mark.slow(minutes=0.4)
def test_a_signal_to_one_process_stops_both_and_four_resume(alone, tmp_path):
    run = start(2, tmp_path, seconds=0.2)  # jax needs about a second to forward a signal
    second = pid_of(run, 1)
    wait_for_lines(tmp_path, 3, run)
    os.kill(second, signal.SIGTERM)
    code, said, _ = finish(run)
    assert code == 128 + signal.SIGTERM, said
    stopped = re.findall(r"\[(\d)\] Stopped by SIGTERM after step (\d+) of 30, everything", said)
    assert sorted(number for number, _ in stopped) == ["0", "1"]
    assert len({step for _, step in stopped}) == 1
    code, said, _ = finish(start(4, tmp_path))
    assert code == 0, said
    assert f"Resuming from step {stopped[0][1]} of 30" in said
    same_numbers(tmp_path, alone)


JOIN = """
import os, signal, sys, time
from pathlib import Path
from nystromformer_jax.training import (
    CannotWrite, HostsConfig, ProcessLost, StopSignals, Workdir, exit_code_of, initialize, shutdown,
    sync_errors,
)
values = dict(flag.removeprefix("--").split("=") for flag in sys.argv[1:])
count, number = int(values["num_processes"]), int(values["process_id"])
try:
    config = HostsConfig(coordinator=values["coordinator"], num_processes=count, process_id=number)
    initialize(config, SECONDS)
except ValueError as error:
    print(error)
    shutdown(2)
"""


def joined(program, *numbers, seconds=60.0):
    """The ends of processes of two, each of which runs `program` after it has joined the other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    program = JOIN.replace("SECONDS", str(seconds)) + program
    flags = [f"--coordinator={coordinator}", "--num_processes=2"]
    started = [programs.start("-c", program, *flags, f"--process_id={i}") for i in numbers]
    return [finish(run) for run in started]


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("calls", [0, 7])
def test_a_signal_before_the_first_step_of_a_run_stops_it_there(calls):
    program = f"""
with StopSignals() as stop:
    for _ in range({calls}):  # of an earlier run of this process
        stop.sync()
if number == 1:
    os.kill(os.getpid(), signal.SIGTERM)
time.sleep(5)  # until both processes know of the signal
with StopSignals() as stop:
    stop.sync()
print("received", stop.received)
shutdown(0)
"""
    for code, said, _ in joined(program, 0, 1):
        assert code == 0, said
        assert f"received {int(signal.SIGTERM)}" in said


@pytest.mark.slow(minutes=0.1)
def test_a_process_lost_at_a_barrier_is_named_unless_this_process_has_an_error():
    program = """
with sync_errors():
    pass
if number == 1:
    os._exit(3)
for own in (None, OSError("own")):
    try:
        with sync_errors():
            if own:
                raise own
    except (ProcessLost, OSError) as error:
        print(type(error).__name__, flush=True)
os._exit(0)
"""
    (code, said, _), (second, _, _) = joined(program, 0, 1)
    assert (code, second) == (0, 3), said
    assert said.split("\n")[-3:] == ["ProcessLost", "OSError", ""]


@pytest.mark.slow(minutes=1)
def test_loss_of_one_process_ends_the_others_and_one_resumes(alone, tmp_path):
    run = start(2, tmp_path, seconds=0.05)
    second = pid_of(run, 1)
    wait_for_lines(tmp_path, 4, run)
    os.kill(second, signal.SIGKILL)
    killed = time.monotonic()
    code, said, _ = finish(run)
    assert time.monotonic() - killed < 60
    assert code != 0
    ours = r"\[0\] Process 0 of 2 lost another process \(.*Start all of them again"
    jaxs = r"\[0\] .*This most likely indicates that another task died"  # while it waits for a save
    assert re.search(f"{ours}|{jaxs}", said), said
    tiny.train(tmp_path, tiny.config(events=True))
    same_numbers(tmp_path, alone)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection closed by peer"), True),
        (TimeoutError("Timed out while waiting for async_write_complete barrier."), True),
        (ValueError("UNKNOWN: Gloo AllGather failed: Connection closed by peer"), True),
        (JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (WorkdirBusy("/runs/barrier is in use by another process"), False),
        (ValueError("/runs/heartbeat contains a run with a different config"), False),
        (FileNotFoundError("/runs/barrier: the network is unavailable"), False),
    ],
)
def test_detects_a_lost_process_only_from_errors_of_jax_and_orbax(monkeypatch, error, lost):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ProcessLost if lost else type(error)), detect_lost_process():
        raise error


def test_processes_that_do_not_connect_report_a_timeout():
    (done,) = joined("", 1, seconds=0.5)
    assert done.code == 2, done.errors
    assert "coordinator 127.0.0.1" in done.output
    assert "waited 0.5 s" in done.output


def test_an_error_in_one_process_ends_all(tmp_path):
    """Another config, other data, a full disk; the first process writes the files, the second reads them."""
    script, folder = tmp_path / "differs.py", tmp_path / "run"
    open_it = f"""
for seed, sha256 in ((number, "2" * 64), (3, str(number) * 64)):
    try:
        with Workdir(Path({str(folder)!r}), {{"train": {{"seed": seed}}}}) as run:
            run.require_data(sha256)
    except ValueError as error:
        print(error, flush=True)
try:
    with sync_errors():
        if number == 0:
            raise CannotWrite("the disk is full")
except Exception as error:
    print(error, flush=True)
    shutdown(exit_code_of(error))
"""
    script.write_text(JOIN.replace("SECONDS", "60") + open_it)
    done = launched(2, script)
    assert done.code == 1, done.output
    for words in ("train.seed: 0 in the run, 1 now", "000000000000…, is now 1111", "is full"):
        said = re.findall(rf"\[(\d)\] (.*{re.escape(words)}.*)", done.output)
        assert sorted(number for number, _ in said) == ["0", "1"], done.output
        assert len({sentence for _, sentence in said}) == 1
    assert not (folder / "config.json").exists()


def launched(count, *command):
    return finish(programs.start("launch/local.py", count, *command, NPROC=8))


@pytest.mark.parametrize("count", ["0", "²"])
def test_rejects_an_invalid_number_of_processes(count, capsys):
    assert local.main([count, "run_lra.py"]) == 2
    assert repr(count) in capsys.readouterr().err


def test_launcher_stops_the_others_and_returns_the_first_exit_code(tmp_path):
    script = tmp_path / "fails.py"
    second = "sys.argv[-1].endswith('=1')"
    script.write_text(
        f"import os, sys, time\nif {second}:\n    os.kill(os.getpid(), 9)\n"
        f"time.sleep({TOO_LONG})\nsys.exit(5)\n"
    )
    assert launched(2, script).code == 128 + 9


def test_a_second_signal_kills(tmp_path):
    script = tmp_path / "deaf.py"
    script.write_text(
        "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
        f"time.sleep({TOO_LONG})\n"
    )
    run = programs.start("launch/local.py", 1, script)
    while "deaf" not in run.stdout.readline():
        assert run.poll() is None
    run.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.poll() is None
    run.send_signal(signal.SIGTERM)
    assert finish(run).code == 128 + 9


NAMED = {"coordinator": "here:1", "num_processes": 2, "process_id": 0}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"coordinator": "here:1234"}, "go together"),
        ({"process_id": -1}, "go together"),
        ({**NAMED, "coordinator": "here"}, "--coordinator"),
        ({**NAMED, "coordinator": ":1234"}, "--coordinator"),
        ({**NAMED, "coordinator": "here:0"}, "--coordinator"),
        ({**NAMED, "coordinator": "here:²"}, "--coordinator"),
        ({**NAMED, "coordinator": "here:65536"}, "--coordinator"),
        ({**NAMED, "num_processes": 0}, "--num_processes"),
        ({**NAMED, "process_id": 2}, "between 0 and 1"),
        ({**NAMED, "process_id": -1}, "--process_id"),
        ({**NAMED, "distributed": True}, "--distributed"),
    ],
)
def test_rejects_invalid_process_flags(values, words):
    with pytest.raises(ValueError, match=words):
        HostsConfig(**values)
    assert HostsConfig(**{**NAMED, "coordinator": "here:65535", "process_id": 1})


class FakeMesh:
    """A mesh of devices of the hosts in `rows`."""

    def __init__(self, rows):
        self.devices = np.array([[SimpleNamespace(process_index=i) for i in row] for row in rows])
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
    assert [data_shard(FakeMesh(rows), host) for host in range(4)] == shares


@pytest.mark.usefixtures("no_annotations")
def test_rejects_shares_of_different_sizes():
    with pytest.raises(ValueError, match="unevenly"):
        data_shard(FakeMesh([[0, 0], [0, 1], [1, 1]]), 0)


def test_one_process_has_all_rows_and_returns_from_shutdown():
    assert data_shard(make_mesh(MeshConfig(data=2, sequence=4))) == (0, 1)
    assert shutdown(2) is None  # os._exit would end the tests here
