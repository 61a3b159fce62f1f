"""Memory of attention on a GPU, and the table of budgets."""

import pytest

from benchmarks import budgets
from benchmarks.table import in_own_process


def test_table_has_times_in_multiples_of_the_floor():
    row = {"topology": "v5e:1x1", "form": "plain", "mode": "gradient", "length": 2**23}
    row |= {"floor_seconds": 0.5, "fits": True, "seconds": 2.0, "temp_bytes": 0}
    row["kept_bytes"] = budgets.MIB
    rows = [row, {**row, "fits": False, "seconds": None}]
    *_, fits, does_not = budgets.markdown({"rows": rows}).splitlines()
    assert fits.endswith("| 500,000 | 2,000,000 (4.00 × floor) | 0.0 | 1.0 |")
    assert "does not fit" in does_not


# (µs by bytes, MiB of temporaries)
BOUNDS = {"forward": (250, 120), "gradient": (646, 140)}


@pytest.mark.slow(minutes=2)
@pytest.mark.parametrize("mode", BOUNDS)
def test_attention_on_a_gpu_needs_few_bytes(mode):
    pytest.importorskip("jax_cuda12_plugin", reason="needs the extra plan-gpu")
    row = in_own_process(budgets.budget, "h200:1", mode, 4096, "plain")
    microseconds, temporaries = BOUNDS[mode]
    assert row["seconds"] <= microseconds * 1e-6
    assert row["temp_bytes"] <= temporaries * 2**20
