import jax
import pytest

from benchmarks import accelerator
from benchmarks.accelerator import attention, check
from benchmarks.literal import literal_attention
from nystromformer_jax import nystrom_attention
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
    row = check("bfloat16", masked=True)
    assert row["passed"]
    assert 0 < row["forward_error"] < 1e-2


def test_output_name_may_contain_a_dot(tmp_path, monkeypatch):
    row = {"passed": True}
    monkeypatch.setattr(accelerator, "check", lambda dtype, masked: row)
    monkeypatch.setattr(accelerator, "attention", lambda *_: [row])
    out = tmp_path / "jax-0.10"
    monkeypatch.setattr("sys.argv", ["accelerator", "--out", str(out), "--configs"])
    assert accelerator.main() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["jax-0.10.json"]


@pytest.mark.slow(minutes=0.2)
def test_every_form_is_timed_and_counted():
    rows = {row["form"]: row for row in attention(1, 128, "forward", 1)}
    assert set(rows) >= {"ours", "plain", "literal", "exact"}
    for row in rows.values():
        assert row["seconds"] > 0
        assert row["kernels"] > 0
