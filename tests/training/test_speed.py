"""Which times count as a step's time, and how they are shown."""

import io
import time

from nystromformer_jax.training.checkpoint import Record
from nystromformer_jax.training.speed import Progress, Stopwatch


def test_pauses_are_excluded_and_input_is_a_fraction(monkeypatch):
    now, record = [1000.0], Record()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    stopwatch = Stopwatch(record, batch_size=32)
    wait(100)
    stopwatch.restart()  # compilation
    for _ in range(4):
        with stopwatch.input():
            wait(0.5)
        wait(1.5)
        stopwatch.step()
    with stopwatch.pause():
        wait(50)
    assert stopwatch.lap() == {"step_seconds": 2, "examples_per_second": 16, "input_share": 0.25}
    assert stopwatch.lap() == {}
    stopwatch.add_elapsed()
    assert (record.timed_steps, record.timed_seconds, record.input_seconds) == (4, 8, 2)
    assert record.train_seconds == 158


def test_progress_is_lines_in_a_pipe_and_a_bar_in_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    shown = []
    for stream, silent in ((io.StringIO(), False), (Terminal(), False), (Terminal(), True)):
        monkeypatch.setattr("sys.stderr", stream)
        progress = Progress(3, 10, silent=silent)
        progress.step()
        progress.step()
        progress.show({"train/loss": 0.5}, {"examples_per_second": 16.0, "step_seconds": 2.0})
        progress.show({"valid/loss": 1.0})
        progress.close()
        shown.append(stream.getvalue())
    pipe, terminal, silent = shown
    trained = "step 5/10: train/loss 0.5, 16 examples/s, 00:10 left"
    assert pipe == f"{trained}\nstep 5/10: valid/loss 1\n"
    assert all(words in terminal for words in ("\r", "5/10", "train/loss 0.5", "valid/loss 1\n"))
    assert silent == ""
