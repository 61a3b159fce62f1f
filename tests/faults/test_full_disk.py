"""A full disk and a read-only folder: one error message, nothing lost, and the same bits after a resume."""

import errno
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nystromformer_jax.training import CannotWrite, CheckpointConfig, EvalConfig, LogConfig, Workdir
from tests.helpers import files_of_at_most
from tests.test_run_lra import SMALL
from tests.training import tiny

ROOT = Path(__file__).parents[2]
# A folder in which nobody can create files, not even root.
NOBODYS = Path("/sys/kernel")


def every_step(events):
    """Sixty lines of metrics: longer than any file of a checkpoint, shorter than the events."""
    return tiny.config(
        60,
        eval=EvalConfig(every_steps=20),
        checkpoint=CheckpointConfig(every_steps=20),
        log=LogConfig(every_steps=1, events=events),
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    tiny.train(workdir, every_step(events=False))
    return workdir


@pytest.fixture(scope="module")
def cached_programs(tmp_path_factory):
    """Compiles the programs of `tiny.train`, because the files of JAX's cache are limited, too."""
    tiny.train(tmp_path_factory.mktemp("cached"))


def assert_one_sentence(stopped, workdir):
    assert str(stopped.value).startswith(f"{workdir} cannot be written (File too large): free")
    assert "the same command resumes from there" in str(stopped.value)
    assert "\n" not in str(stopped.value)


@pytest.mark.slow_except("False-metrics.jsonl")
@pytest.mark.parametrize(("events", "full"), [(False, "metrics.jsonl"), (True, "events/*")])
def test_full_disk_ends_the_run_with_an_error_and_it_resumes_later(
    uninterrupted, tmp_path, events, full
):
    settings = every_step(events)
    with files_of_at_most(5000), pytest.raises(CannotWrite) as stopped:
        tiny.train(tmp_path, settings)
    assert_one_sentence(stopped, tmp_path)
    assert [path.stat().st_size for path in tmp_path.glob(full)] == [5000], "it was another file"
    tiny.train(tmp_path, settings)
    tiny.assert_same_run(tmp_path, uninterrupted, step=60)


@pytest.mark.slow_except("3000")
@pytest.mark.parametrize("size", [1000, 3000])  # too small for Orbax's files, for the hashes
@pytest.mark.usefixtures("cached_programs")
def test_unfinished_checkpoint_is_not_renamed(tmp_path, size):
    with files_of_at_most(size), pytest.raises(CannotWrite) as stopped:
        tiny.train(tmp_path)
    assert_one_sentence(stopped, tmp_path)
    left = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert left
    assert not [name for name in left if name.isdigit()]
    assert tiny.train(tmp_path).best_step


def test_failed_write_leaves_no_partial_result(tmp_path):
    with Workdir(tmp_path, {"train": {"seed": 3}}) as run:
        with files_of_at_most(10), pytest.raises(CannotWrite, match="cannot be written"):
            run.write_result({"test_accuracy": 0.5, "task": "listops"})
        assert not [path.name for path in tmp_path.iterdir() if "result" in path.name]
        run.write_result({"test_accuracy": 0.5})
    assert (tmp_path / "result.json").exists()


@pytest.mark.skipif(not NOBODYS.is_dir(), reason="the system has no /sys")
@pytest.mark.parametrize("name", ["run", "sweep/run"])
def test_rejects_a_folder_without_write_permission(name):
    with pytest.raises(
        CannotWrite, match=f"{NOBODYS}/{name} cannot be written .*make the folder writable"
    ):
        Workdir(NOBODYS / name, {"train": {"seed": 3}})


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(errno.EACCES, "Permission denied", "/data/train.npy"),
        OSError(errno.EIO, "Input/output error"),  # reads and writes raise it without a file name
    ],
)
def test_error_of_reading_data_is_not_reported_as_a_write_error(tmp_path, error):
    def unreadable(indices):
        raise error

    with pytest.raises(OSError, match=re.escape(str(error))) as refused:
        tiny.train(tmp_path, training=tiny.examples(101, on_batch=unreadable))
    assert not isinstance(refused.value, CannotWrite)


def in_a_namespace(script, *arguments):
    """Runs a shell script in a mount namespace of its own."""
    return subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount"),
            *("bash", "-eu", "-c", script, "bash", *map(str, arguments)),
        ],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "", "NPROC": "2"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=False,
    )


def can_mount():
    return bool(shutil.which("unshare")) and not in_a_namespace("mount -t tmpfs x /mnt").returncode


@pytest.mark.slow(minutes=2)
def test_command_resumes_after_a_full_disk(tmp_path):
    """The real command on a small file system: it fails with an error, resumes, and gives the same bits."""
    if not can_mount():
        pytest.skip("no user may mount a file system here")
    script = """
        mount -t tmpfs -o size=24m disk $1
        export NYSTROMFORMER_JAX_CACHE=$2/cache
        command="${@:4}"
        $command --workdir=$2/whole
        $command --workdir=$1/run & run=$!
        until [ -d $1/run/checkpoints/100 ]; do sleep 0.01; done
        dd if=/dev/zero of=$1/filler bs=1k || true
        if wait $run; then exit 3; fi
        echo === mended
        rm $1/filler
        $command --workdir=$1/run
        cmp $1/run/metrics.jsonl $2/whole/metrics.jsonl
        cp $1/run/result.json $2/
    """
    command = [sys.executable, "run_lra.py", "--config=configs/listops.py", *SMALL]
    (tmp_path / "disk").mkdir()
    done = in_a_namespace(textwrap.dedent(script), tmp_path / "disk", tmp_path, "", *command)
    assert done.returncode == 0, done.stdout[-3000:]
    before, after = done.stdout.split("=== mended")
    said, run = before.strip().splitlines()[-1], f"{tmp_path}/disk/run"
    assert said.startswith(f"run_lra.py: {run} cannot be written (No space left on device): free")
    assert "Traceback" not in before
    assert "Resuming from step" in after
    assert (tmp_path / "result.json").exists()
