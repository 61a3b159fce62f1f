"""A run that was interrupted and resumed leaves the same bytes as an uninterrupted one."""

import os
import signal
import threading

import numpy as np
import pytest

from nystromformer_jax.training import Interrupted, evaluate_split
from nystromformer_jax.training.checkpoint import Checkpointer
from tests import programs
from tests.programs import wait_for_lines
from tests.training import tiny


def start(workdir):
    """Thirty slow steps in a separate process, with the devices and threads of this one."""
    same = {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC")}
    return programs.start("tests/training/tiny.py", workdir, 0.02, **same)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The same run at full speed in this process."""
    workdir = tmp_path_factory.mktemp("uninterrupted")
    tiny.train(workdir, tiny.config(events=True))
    return workdir


@pytest.mark.slow_except("once")
@pytest.mark.parametrize("kills", [(4,), (2, 5)], ids=["once", "twice"])
def test_sigkill_and_resume_change_no_bits(uninterrupted, tmp_path, kills):
    for lines in kills:
        process = start(tmp_path)
        wait_for_lines(tmp_path, lines, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    tiny.train(tmp_path, tiny.config(events=True))
    tiny.assert_same_run(uninterrupted, tmp_path)


@pytest.mark.slow(minutes=0.3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_saves_the_state_and_a_resume_changes_no_bits(uninterrupted, tmp_path, number):
    process = start(tmp_path)
    wait_for_lines(tmp_path, 4, process)
    process.send_signal(number)
    process.send_signal(number)
    code, said, _ = programs.finish(process)
    assert code == 128 + number
    assert "everything saved; the same command resumes from there" in said
    tiny.train(tmp_path, tiny.config(events=True))
    tiny.assert_same_run(uninterrupted, tmp_path)


def signal_at_call(call, numbers=(signal.SIGTERM,)):
    """A callback that signals this process's main thread when it is called for the n-th time."""
    calls = iter(range(1_000_000))

    def on_call(*_):
        if next(calls) == call:
            for number in numbers:
                signal.pthread_kill(threading.main_thread().ident, number)

    return on_call


@pytest.mark.slow_except("3")
@pytest.mark.parametrize("call", [3, 10, 17])
def test_signal_between_log_steps(uninterrupted, tmp_path, call):
    with pytest.raises(Interrupted) as stopped:
        tiny.train(
            tmp_path, training=tiny.examples(101, seconds=0.01, on_batch=signal_at_call(call))
        )
    assert 0 < stopped.value.step < 30
    assert tiny.last_params(tmp_path, stopped.value.step).shape == (5, 3)  # saved where it stopped
    tiny.train(tmp_path)
    tiny.assert_same_run(uninterrupted, tmp_path)


@pytest.mark.slow(minutes=0.1)
@pytest.mark.parametrize("call", [0, 6, 11])  # five batches an evaluation: steps 10, 20, 30
def test_evaluation_stopped_by_a_signal_is_repeated_after_the_resume(uninterrupted, tmp_path, call):
    validation = tiny.examples(37, seed=1, seconds=0.02, on_batch=signal_at_call(call))
    with pytest.raises(Interrupted) as stopped:
        tiny.train(tmp_path, validation=validation)
    assert stopped.value.step == {0: 10, 6: 20, 11: 30}[call]
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert "valid/loss" not in lines[-1]
    tiny.train(tmp_path)
    tiny.assert_same_run(uninterrupted, tmp_path)


def test_signals_during_a_save_finish_it_and_handlers_are_restored(
    uninterrupted, tmp_path, monkeypatch
):
    save = Checkpointer.save
    disturb = signal_at_call(1, (signal.SIGTERM, signal.SIGINT))

    def disturbed_save(self, step, state, totals, record):
        save(self, step, state, totals, record)
        disturb()

    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(Checkpointer, "save", disturbed_save)
    with pytest.raises(Interrupted, match="Stopped by SIGTERM after step 20 of 30") as stopped:
        tiny.train(tmp_path)
    assert stopped.value.exit_code == 143
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == handlers
    tiny.train(tmp_path)
    tiny.assert_same_run(uninterrupted, tmp_path)


def test_resumes_with_another_mesh_and_log_interval(uninterrupted, tmp_path):
    import jax

    from nystromformer_jax.training import LogConfig, MeshConfig, make_mesh

    with pytest.raises(Interrupted):
        tiny.train(tmp_path, training=tiny.examples(101, on_batch=signal_at_call(13), seconds=0.01))
    eight = make_mesh(MeshConfig(), jax.devices())
    settings = tiny.config(log=LogConfig(every_steps=7, events=False))
    tiny.train(tmp_path, settings, mesh=eight)
    one, other = (tiny.last_params(folder, 30) for folder in (uninterrupted, tmp_path))
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_evaluation_outside_of_training_stops_at_a_signal(number, capfd):
    examples = tiny.examples(37, on_batch=signal_at_call(1, (number,)), seconds=0.02)
    spec = tiny.make_spec(tiny.examples(1))
    with pytest.raises(Interrupted, match="during an evaluation; the same command") as stopped:
        evaluate_split(spec, tiny.make_params(), examples)
    assert (stopped.value.exit_code, stopped.value.step) == (128 + number, None)
    said = capfd.readouterr().err
    assert "Stopping.\n" in said
    assert "saving" not in said
