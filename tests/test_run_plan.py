"""`run_plan.py` as users call it."""

import pytest

from tests.programs import assert_refused, call, finish, start

SMALL = [
    "--config=configs/listops.py:nystrom,num_landmarks=8,conv_kernel_size=9",
    "--config.data.max_len=64",
    "--config.model.max_len=64",
    "--config.train.batch_size=8",
]


def run(*arguments):
    devices = "--xla_force_host_platform_device_count=8"
    return finish(start("run_plan.py", *SMALL, *arguments, XLA_FLAGS=devices))


@pytest.mark.slow(minutes=0.2)
def test_plans_for_the_devices_of_this_machine():
    done = run("--config.mesh.sequence=4", "--config.train.remat=True")
    assert done.code == 0, done.errors
    assert "8 device(s), data 2 × sequence 4; batch 8, length 64; layers remat" in done.output
    assert "optimizer state" in done.output
    assert "all-reduce" in done.output
    assert "no estimate for this device: pass --topology" in done.output


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--topology=v5e"], "v5e:1x1"),
        (["--topology=v5x:2x2"], "v5e"),
        (["--config.mesh.data=3"], "8 device(s)"),
        (["--price=-1"], "price"),
        (["--price=1.2"], "--topology"),
        (["--examples=100"], "--examples"),
    ],
)
def test_invalid_plans_print_one_line_and_exit_with_2(in_repository, arguments, word):
    assert_refused(call("run_plan", *SMALL, *arguments), "run_plan", word)


@pytest.mark.slow(minutes=1)
def test_plans_for_another_topology():
    pytest.importorskip("libtpu")
    done = run("--topology=v5e:2x2", "--price=1.2", "--nolargest_batch")
    assert done.code == 0, done.errors
    assert "v5e:2x2: 4 device(s)" in done.output
    assert "of 16.00 GiB" in done.output
    assert "cost of the run" in done.output


@pytest.mark.slow(minutes=2)
def test_plans_for_a_gpu():
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    done = run("--topology=h200:1", "--nolargest_batch")
    assert done.code == 0, done.errors
    assert "h200:1: 1 device(s)" in done.output
    assert "of 141.00 GiB" in done.output
    assert "a roofline" in done.output
