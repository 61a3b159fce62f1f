"""Kernels and cycles of compiled programs, from their text, and their table."""

import json
import subprocess
import sys

import pytest

from benchmarks import budgets
from tests.programs import ROOT
from tests.training.test_collectives import loop, program


def test_kernels_in_loops_count_once_per_iteration():
    fused = "%k = f32[8]{0} fusion(%p), kind=kLoop, calls=%fused"
    text = program(
        fused,
        "%t = (f32[8]) tuple(%k)",
        loop(5),
        body=[fused],
        fused=["ROOT %s = f32[8]{0} sine(%p)"],
    )
    assert budgets.count_kernels(text) == 1 + 5


def test_cycles_are_summed_with_loops_multiplied():
    def cycles(n):
        return f'ROOT %a = f32[8]{{0}} add(%p, %p), backend_config={{"estimated_cycles":"{n}"}}'

    text = program(cycles(2), loop(5), cycles(3), body=[cycles(7), cycles(11)])
    assert budgets.estimated_cycles(text) == 2 + 3 + 5 * (7 + 11)
    called = program("%c = f32[8] call(%p), to_apply=%body", cycles(3), body=[cycles(7)])
    assert budgets.estimated_cycles(called) == 3 + 7
    assert budgets.estimated_cycles(program("ROOT %a = f32[8]{0} add(%p, %p)")) is None


def test_kernel_bytes_are_multiplied_by_loops():
    def kernel(name, nbytes):
        return (
            f'%k = f32[8] custom-call(%p), metadata={{op_name="jit(f)/jvp({name})/pallas_call"}},'
            f' backend_config={{"cost_estimate":{{"flops":"3","bytes_accessed":"{nbytes}"}}}}'
        )

    other = '%c = f32[8] custom-call(%p), custom_call_target="ConcatBitcast"'
    text = program(kernel("nystrom_collect", 2), other, loop(5), body=[kernel("nystrom_sums", 7)])
    assert budgets.kernel_costs(text) == [("collect", 2), ("sums", 35)]
    assert budgets.kernel_costs(program(other)) == []


def test_table_has_times_in_multiples_of_the_floor():
    row = {"topology": "v5e:1x1", "form": "plain", "mode": "gradient", "length": 2**23}
    row |= {"floor_seconds": 0.5, "fits": True, "seconds": 2.0, "temp_bytes": 0, "kernels": 0}
    row["kept_bytes"] = budgets.MIB
    *_, fits, does_not = budgets.markdown({"rows": [row, {**row, "fits": False}]}).splitlines()
    assert "| 500,000 | 2,000,000 (4.00 × floor) | 0.0 | 1.0 |" in fits
    assert "does not fit" in does_not


# (kernels, µs by bytes, MiB of temporaries)
BOUNDS = {"forward": (48, 250, 120), "gradient": (150, 646, 140)}


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("mode", BOUNDS)
def test_attention_on_a_gpu_needs_few_kernels_and_bytes(mode):
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    command = [sys.executable, "-m", "benchmarks.budgets", "--out=x"]
    cell = ["--cell", "h200:1", "plain", mode, "4096"]
    printed = subprocess.run([*command, *cell], stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout
    row = json.loads(printed.splitlines()[-1])
    kernels, microseconds, temporaries = BOUNDS[mode]
    assert row["kernels"] <= kernels
    assert row["seconds"] <= microseconds * 1e-6
    assert row["temp_bytes"] <= temporaries * 2**20
