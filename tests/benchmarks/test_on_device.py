"""Checks and timings on an accelerator."""

import sys

import jax
import pytest

from benchmarks import on_device
from benchmarks.literal import literal_attention
from nystromformer_jax import nystrom_attention
from nystromformer_jax.support.durable import read_json, write_json
from tests.helpers import OTHER_FRAMEWORK, assert_close, normal, random_inputs


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


def test_a_gradient_that_is_not_a_number_fails_the_check(monkeypatch):
    def with_gradient(function):
        return lambda *arrays: (function(*arrays[:-1]), [*arrays[:2], arrays[2] * float("nan")])

    monkeypatch.setattr("benchmarks.forms.with_gradient", with_gradient)
    (row,) = on_device.check("float32", masked=False, toy=True)
    assert not row["passed"]


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


def run(monkeypatch, folder):
    monkeypatch.setattr(sys, "argv", ["on_device", f"--out={folder}", "--toy"])
    return on_device.main()


def test_rows_are_measured_once_and_a_failed_check_is_the_exit_code(tmp_path, monkeypatch, capsys):
    asked, passed = [], []

    def measure(**keys):
        asked.append(keys)
        return [{**keys, "passed": not passed}]

    for name in ("check", "attention", "step"):
        monkeypatch.setattr(on_device, name, measure)
    assert run(monkeypatch, tmp_path) == 0
    assert run(monkeypatch, tmp_path) == 0
    assert len(asked) == 3
    results = read_json(tmp_path / "results.json")
    write_json(tmp_path / "results.json", {**results, "checks": []})
    passed.append(False)
    assert run(monkeypatch, tmp_path) == 1
    assert "failed: {'dtype'" in capsys.readouterr().err


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
