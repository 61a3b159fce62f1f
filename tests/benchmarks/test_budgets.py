"""Memory of attention on a GPU."""

import pytest

from benchmarks import budgets
from benchmarks.table import in_own_process

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
