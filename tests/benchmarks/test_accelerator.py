"""Pieces on an accelerator, and what they measure."""

import json
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import pytest

from benchmarks import accelerator, compiled, on_device
from benchmarks.literal import literal_attention
from nystromformer_jax import nystrom_attention
from nystromformer_jax.training import write_json
from tests.benchmarks.test_gpu_budget import PROGRAM
from tests.helpers import OTHER_FRAMEWORK, assert_close, normal, random_inputs
from tests.programs import ROOT


def test_literal_port_equals_nystrom_attention(rngs):
    inputs = random_inputs(rngs, 2, 48, 3, 8)
    kernel = normal(next(rngs), (3, 5))
    options = {"num_landmarks": 12, "pinv_start": "batch_max", "conv_kernel": kernel}
    actual = jax.jit(lambda *inputs: literal_attention(*inputs, kernel, 12))(*inputs)
    expected = jax.jit(lambda *inputs: nystrom_attention(*inputs, **options))(*inputs)
    assert_close(actual, expected, OTHER_FRAMEWORK)


@pytest.mark.slow(minutes=0.2)
def test_bfloat16_is_checked_against_the_cpu():
    (row,) = on_device.check("bfloat16", masked=True)
    assert row["passed"]
    assert 0 < row["forward_error"] < 1e-2


def test_a_form_that_does_not_fit_leaves_the_others(monkeypatch):
    def compiled(form, mode, arguments):
        if form == "exact":
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory\nof 100 bytes")
        return {"kernels": 7}, lambda: 0

    monkeypatch.setattr(on_device, "_compiled", compiled)
    monkeypatch.setattr(on_device, "torch_has_the_device", lambda: False)
    rows = {row.pop("form"): row for row in on_device.attention(128, "gradient", toy=True)}
    assert rows["exact"]["error"] == "MemoryError: RESOURCE_EXHAUSTED: Out of memory"
    assert "seconds" not in rows["exact"]
    assert rows["ours"]["kernels"] == 7
    assert rows["ours"]["seconds"] >= 0


def test_kernels_in_loops_count_once_per_iteration(monkeypatch):
    program = SimpleNamespace(as_text=lambda: PROGRAM)
    made = compiled.Compiled({"temp_bytes": 3}, program)
    monkeypatch.setattr(compiled, "compile_ahead", lambda *_: made)
    figures, _ = on_device._compiled("ours", "forward", ())
    assert figures == {"temp_bytes": 3, "kernels": 6}


def test_results_of_another_machine_are_refused(tmp_path, monkeypatch, capsys):
    results = {"settings": {"device": "Abacus", "toy": True}, "commands": []}
    lists = {name: [] for name in on_device.PARTS}
    write_json(tmp_path / "results.json", {**results, **lists})
    monkeypatch.setattr(sys, "argv", ["on_device", f"--out={tmp_path}"])
    assert on_device.main() == 2
    error = capsys.readouterr().err
    assert "with different settings (" in error
    assert "device 'Abacus' in the file, " in error
    assert "toy True in the file, False now" in error
    assert "processor" not in error  # pieces may run on several hosts


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"passed": True}, True),
        ({"passed": False}, False),
        ({"dtype": "float32", "error": "TypeError: no"}, False),
        ({"dtype": "float32", "error": "MemoryError: RESOURCE_EXHAUSTED: Out of memory"}, False),
        ({"form": "exact", "error": "MemoryError: RESOURCE_EXHAUSTED: Out of memory"}, True),
        ({"form": "cudnn", "error": "ValueError: no"}, False),
        ({"config": "text", "ours": 1.0, "Hugging Face, error": "RuntimeError: no"}, False),
    ],
)
def test_only_too_little_memory_is_not_a_failure(row, expected):
    assert on_device.is_right(row) == expected


def test_our_step_is_measured_if_the_peer_fails(monkeypatch):
    monkeypatch.setattr(on_device, "torch_has_the_device", lambda: True)
    monkeypatch.setitem(sys.modules, "benchmarks.peers", None)  # the import fails
    monkeypatch.delattr("benchmarks.peers", raising=False)
    (row,) = on_device.step("listops", toy=True)
    assert row["ours"] > 0
    assert "Error" in row["Hugging Face, error"]


SAVES = "trap 'echo saved > saved; kill $!; exit 143' TERM; sleep 60 & wait"


def test_a_command_is_stopped_in_time_and_saves(tmp_path, monkeypatch):
    monkeypatch.setattr(accelerator, "ROOT", tmp_path)
    assert accelerator.run(["sh", "-c", SAVES], 1.0) is None
    assert (tmp_path / "saved").is_file()


def test_a_command_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(accelerator, "SAVE_SECONDS", 0.3)
    command = ["sh", "-c", "trap '' TERM; while true; do sleep 0.1; done"]
    started, popen = [], subprocess.Popen

    def start(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    assert accelerator.run(command, 1.0) is None
    assert started[0].returncode == -signal.SIGKILL


def test_a_command_that_the_system_kills_has_failed():
    assert accelerator.run(["sh", "-c", "kill -KILL $$"], 60.0) == -signal.SIGKILL


def piece(monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["accelerator", f"--out={folder}", *arguments])
    return accelerator.main()


def test_a_piece_runs_what_is_left_in_order(tmp_path, monkeypatch, capsys):
    started = []

    def run(command, seconds):
        assert seconds <= 9 * 60 - accelerator.SAVE_SECONDS
        started.append(command[1:3])
        return None if len(started) == 3 else 0

    monkeypatch.setattr(accelerator, "run", run)
    (tmp_path / "listops").mkdir()
    write_json(tmp_path / "listops" / "result.json", {"test_accuracy": 0.372})
    (tmp_path / "image" / "checkpoints" / "9500").mkdir(parents=True)
    (tmp_path / "image" / "checkpoints" / "10000").mkdir()
    write_json(tmp_path / "image" / "config.json", {"train": {"total_steps": 35_000}})
    assert piece(monkeypatch, tmp_path, "--minutes=9", f"--data_dir={tmp_path}") == 0
    assert started == [
        ["-m", "benchmarks.on_device"],
        *(
            ["run_lra.py", f"--config=configs/{task}.py"]
            for task in ("text", "image", "pathfinder")
        ),
    ]
    printed = capsys.readouterr().out
    assert "done: listops, test accuracy 37.20 %; image to step 10000 of 35000\n" in printed
    assert "left: timings, text, image, pathfinder\n" in printed
    command = f"--out={tmp_path} --minutes=9 --data_dir={tmp_path}"
    assert f"next: python -m benchmarks.accelerator {command}\n" in printed


def test_a_piece_reports_failures_and_missing_data(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "run", lambda command, seconds: 2 * ("run_lra.py" in command))
    row = {"dtype": "float32", "masked": False, "passed": False}
    write_json(tmp_path / "results.json", {"checks": [row]})
    assert piece(monkeypatch, tmp_path, "--minutes=9") == 1
    printed = capsys.readouterr().out
    assert (
        "left: timings, listops (exit code 2, see above), text (pass --data_dir), image" in printed
    )
    assert f"failed: {row}" in printed


def test_nothing_starts_shortly_before_the_end(tmp_path, monkeypatch, capsys):
    started = []

    def run(command, seconds):
        started.append(command)
        monkeypatch.setattr(accelerator, "START_SECONDS", 1e9)  # as if the time were over
        return 0

    monkeypatch.setattr(accelerator, "run", run)
    assert piece(monkeypatch, tmp_path, "--minutes=9") == 0
    assert len(started) == 1
    assert "done: nothing\nleft: timings, listops, text (pass" in capsys.readouterr().out


def test_a_piece_too_short_to_start_anything_is_rejected(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        piece(monkeypatch, tmp_path, "--minutes=1")
    assert "--minutes must be 4.3 or more" in capsys.readouterr().err


def test_corrupt_results_are_reported_on_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "results.json").write_text("{")
    assert piece(monkeypatch, tmp_path) == 2
    assert "results.json" in capsys.readouterr().err


@pytest.mark.slow(minutes=1)
def test_two_pieces_on_a_cpu(tmp_path):
    command = [sys.executable, "-m", "benchmarks.accelerator", "--toy", f"--out={tmp_path}"]
    file = tmp_path / "toy" / "results.json"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as first:
        while not file.is_file():
            time.sleep(0.1)
        first.terminate()
        printed = first.stdout.read()
    before = json.loads(file.read_text())
    assert "left: timings, listops\n" in printed
    printed = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    after = json.loads(file.read_text())
    assert "left" not in printed
    assert "1 rows of checks; 5 rows of attention; 1 rows of steps; listops, test acc" in printed
    for part in on_device.PARTS:  # kept, and not measured again
        assert after[part][: len(before[part])] == before[part]
        assert after[part]
    for row in after["attention"]:
        assert row["seconds"] > 0
        assert row["kernels"] > 0
