"""`run_plan.py` as people call it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = [
    "--config=configs/listops.py:nystrom,num_landmarks=8,conv_kernel_size=9",
    "--config.data.max_len=64",
    "--config.model.max_len=64",
    "--config.train.batch_size=8",
]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "run_plan.py", *arguments],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow(minutes=0.2)
def test_the_devices_that_are_here_are_planned_for():
    done = run(*SMALL, "--config.mesh.sequence=4", "--config.train.remat=True")
    assert done.returncode == 0, done.stderr
    assert "8 device(s), data 2 × sequence 4; batch 8, length 64; layers remat" in done.stdout
    assert "optimizer state" in done.stdout
    assert "all-reduce" in done.stdout
    assert "no estimate: only a TPU's compiler makes one; pass --topology" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology=v5e"], "such as v5e:1x1; got 'v5e'"),
        (["--config.mesh.data=3"], "cannot lay out 8 device(s)"),
        (["--price=-1"], "price"),
        (["--price=1.2"], "--price needs --topology"),
        (["--examples=100"], "--examples is for a fine-tuning"),
    ],
)
def test_a_wrong_plan_is_one_line_and_exit_code_2(arguments, words):
    done = run(*SMALL, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("run_plan.py: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.slow(minutes=1)
def test_a_topology_that_is_not_here_is_planned_for():
    pytest.importorskip("libtpu")
    done = run(*SMALL, "--topology=v5e:2x2", "--price=1.2", "--nolargest_batch")
    assert done.returncode == 0, done.stderr
    assert "v5e:2x2: 4 device(s)" in done.stdout
    assert "of 16.00 GiB" in done.stdout
    assert "cost of the run" in done.stdout
