"""Checks and timings on an accelerator."""

import sys

import pytest

from benchmarks import on_device
from nystromformer_jax.support.durable import read_json, write_json


@pytest.mark.slow(minutes=0.2)
def test_bfloat16_is_checked_against_the_cpu():
    row = on_device.check(False, "bfloat16", True)
    assert row["passed"]
    assert 0 < row["forward_error"] < 1e-2


def test_a_gradient_that_is_not_a_number_fails_the_check(monkeypatch):
    def with_gradient(function):
        def run(mask, *arrays):
            return function(mask, *arrays[:-1]), [*arrays[:2], arrays[2] * float("nan")]

        return run

    monkeypatch.setattr(on_device, "with_gradient", with_gradient)
    assert not on_device.check(True, "float32", False)["passed"]


def test_a_form_that_does_not_fit_leaves_the_others(monkeypatch):
    def prepare(calls, form, mode, batch, length):
        if form == "exact":
            raise MemoryError("RESOURCE_EXHAUSTED: Out of memory\nof 100 bytes")
        calls[form] = lambda: 0
        return {"temp_bytes": 7}

    monkeypatch.setattr(on_device, "_prepare", prepare)
    found = on_device.attention(True, 128, "gradient", ["ours", "exact"])
    rows = {row["form"]: row for row in found}
    assert rows["exact"]["error"] == "MemoryError: RESOURCE_EXHAUSTED: Out of memory"
    assert "seconds" not in rows["exact"]
    assert (rows["ours"]["temp_bytes"], rows["ours"]["seconds"] >= 0) == (7, True)


def run(monkeypatch, folder):
    monkeypatch.setattr(sys, "argv", ["on_device", f"--out={folder}", "--toy"])
    return on_device.main()


def test_rows_are_measured_once_and_a_failed_check_is_the_exit_code(tmp_path, monkeypatch, capsys):
    asked, passed = [], [True]

    def measure(*cell):
        asked.append(cell)
        return {"passed": passed[-1]}

    monkeypatch.setattr(on_device, "check", measure)
    monkeypatch.setattr(on_device, "step", measure)
    monkeypatch.setattr(on_device, "attention", lambda *_: [])
    assert run(monkeypatch, tmp_path) == 0
    assert run(monkeypatch, tmp_path) == 0
    assert asked == [(True, "float32", True), (True, "listops")]
    results = read_json(tmp_path / "results.json")
    write_json(tmp_path / "results.json", {**results, "checks": []})
    passed.append(False)
    assert run(monkeypatch, tmp_path) == 1
    assert "failed: {'dtype'" in capsys.readouterr().err


def test_only_too_little_memory_is_not_a_failure():
    memory = "MemoryError: RESOURCE_EXHAUSTED: Out of memory"
    for row in ({"passed": True}, {"form": "exact", "error": memory}):
        assert on_device.is_right(row)
    for row in (
        {"passed": False},
        {"dtype": "float32", "error": memory},
        {"form": "cudnn", "error": "ValueError: no"},
        {"config": "text", "ours": 1.0, "Hugging Face, error": "RuntimeError: no"},
    ):
        assert not on_device.is_right(row)
