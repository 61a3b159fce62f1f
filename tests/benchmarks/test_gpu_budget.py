"""The table for GPUs, and bounds on the programs, by the compiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu_budget
from nystromformer_jax.training.planning.hlo import find_launches

PROGRAM = """\
%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%state), index=1
  %n = s32[] get-tuple-element(%state), index=0
  %next = f32[8]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %out = (s32[], f32[8]{0}) tuple(%n, %next)
}

%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %sine = f32[8]{0} sine(%p)
}

ENTRY %main (a: f32[8], b: bf16[8,4]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %b = bf16[8,4]{1,0} parameter(1)
  %both = f32[8]{0} fusion(%a, %b), kind=kInput, calls=%fused
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]{0}) tuple(%zero, %both)
  %loop = (s32[], f32[8]{0}) while(%start), body=%body, {"known_trip_count":{"n":"5"}}
  ROOT %end = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_kernels_in_loops_count_once_per_iteration():
    launches = find_launches(PROGRAM)
    assert launches.count == 1 + 5
    assert launches.nbytes == (32 + 64 + 32) + 5 * (32 + 32)
    assert launches.conditionals == 0


# (kernels, MB, MiB of temporaries); the first version needed 65, 1,466, 168 and 206, 3,926, 336.
BOUNDS = {"forward": (48, 1200, 120), "gradient": (150, 3100, 140)}


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("mode", BOUNDS)
@pytest.mark.parametrize("gpu", gpu_budget.GPUS)
def test_attention_needs_few_kernels_and_bytes(gpu, mode):
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    command = [sys.executable, "-m", "benchmarks.gpu_budget", "--out=x"]
    cell = ["--cell", gpu, "bfloat16", "plain", mode]
    root = Path(__file__).parents[2]
    printed = subprocess.run([*command, *cell], stdout=subprocess.PIPE, check=True, cwd=root).stdout
    row = json.loads(printed.splitlines()[-1])
    kernels, megabytes, temporaries = BOUNDS[mode]
    assert row["kernels"] <= kernels
    assert row["nbytes"] <= megabytes * 1e6
    assert row["temp_bytes"] <= temporaries * 2**20
    assert row["conditionals"] == 0


def test_error_without_the_compiler(monkeypatch, capsys):
    found = gpu_budget.importlib.util.find_spec
    monkeypatch.setattr(
        gpu_budget.importlib.util,
        "find_spec",
        lambda name: None if name == "jax_cuda12_plugin" else found(name),
    )
    monkeypatch.setattr(sys, "argv", ["gpu_budget", "--out=x"])
    with pytest.raises(SystemExit):
        gpu_budget.main()
    assert "pip install -e '.[plan-gpu]'" in capsys.readouterr().err
