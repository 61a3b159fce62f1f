"""Table 1: what is measured, its tables and its errors."""

import argparse
import json

import numpy as np
import pytest
from jax.errors import JaxRuntimeError

from benchmarks import averages, efficiency

TINY = ["--heads", "2", "--head_dim", "4", "--repeats", "3", "--lengths"]
GIVEN = argparse.Namespace(heads=2, head_dim=4, dtype="float32")
GIVEN.repeats, GIVEN.memory_limit = 3, None


def made_row(length, *, mebibytes=1.0, ms=1.0, **changes):
    row = {"attention": "softmax", "length": length, "batch": 1, "pass": "forward", "fits": True}
    row |= {"peak_bytes": mebibytes * 2**20, "measured_bytes": None}
    return row | {"seconds": {"median": 1e-3 * ms}} | changes


def run(folder, *arguments):
    return efficiency.main([*TINY, *arguments, f"--out={folder}/out/cpu"])


def rows_of(folder):
    return json.loads((folder / "out" / "cpu.json").read_text())["rows"]


@pytest.mark.slow(minutes=0.3)
def test_every_case_has_a_row_and_only_softmax_is_quadratic(tmp_path, capsys):
    assert run(tmp_path, "256", "512", "1024") == 0
    rows = rows_of(tmp_path)
    assert len(rows) == len(efficiency.ATTENTIONS) * 3 * 2
    own = [row for row in rows if row["pass"] == "forward + gradient"]
    slopes = {
        attention: np.polyfit(np.log2(table["length"]), np.log2(table["memory"]), 1)[0]
        for attention, table in efficiency.figures({"rows": own}).groupby("attention")
    }
    assert slopes.pop("softmax") > 1.5
    assert max(slopes.values()) < 1.3
    assert (tmp_path / "out" / "cpu.png").read_bytes()[:4] == b"\x89PNG"
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(rows)


def test_programs_above_the_memory_limit_are_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(efficiency, "_samples", lambda *_: pytest.fail("was run"))
    assert run(tmp_path, "32", "--attentions", "softmax", "--memory_limit", "1e-6") == 0
    forward, gradient = rows_of(tmp_path)
    for row in (forward, gradient):
        assert (row["fits"], row["seconds"]) == (False, None)
        assert "more than the limit" in row["reason"]
    assert gradient["flops"] > 2 * forward["flops"]
    params, x = 4 * 4 * (8 * 8 + 8), 4 * 32 * 8
    assert forward["argument_bytes"] == params + x
    assert gradient["argument_bytes"] == params + 2 * x  # and the cotangent


def test_running_out_of_memory_makes_the_memory_unknown(monkeypatch):
    def fail(*_):
        raise JaxRuntimeError("INTERNAL: YNNPACK operation failed: error")

    monkeypatch.setattr(efficiency, "_samples", fail)
    rows = efficiency.measure(GIVEN, 32, 1, "forward", ["softmax"])
    assert not rows[0]["fits"]
    assert efficiency.figures({"rows": rows})["memory"].isna().all()


def test_memory_is_the_larger_of_compiled_and_measured():
    rows = [made_row(1, measured_bytes=size) for size in (3 * 2**20, 1, None)]
    assert list(efficiency.figures({"rows": rows})["memory"]) == [3 * 2**20, 2**20, 2**20]


def test_every_row_of_the_table_is_a_module():
    for name in (*efficiency.ATTENTIONS, *averages.NAMES, "nystrom-7"):
        _, x = efficiency.shapes(name, 512, 1, GIVEN)
        assert x.shape == (1, 512, 8)
