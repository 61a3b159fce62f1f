"""The tables of plans: their cells for unknown numbers, and errors."""

import importlib.util
import sys

import pytest

from benchmarks import plans

ROW = {"config": "listops", "topology": "v5e:2x2", "devices": 4, "sequence": 2, "batch_size": 8}
ROW |= {"steps": 7200, "fits": True, "flops": 2e9, "compute_seconds": 0.4, "link_seconds": 0.1}
ROW["memory"] = {"params": 2**20, "optimizer": 2**20, "temporaries": 3 * 2**20}
ROW["collectives"] = {"all-reduce": {"count": 2, "nbytes": 2**20}}


@pytest.mark.parametrize(
    ("changes", "cells"),
    [
        ({}, "| `listops` | v5e:2x2 (2 × 2) | 8 | 2.0 | 3 | 5 | 2.00 | 1.00 | 500 | 1 |"),
        ({"collectives": None, "link_seconds": None}, "| 2.00 |  |  |  |"),
        ({"fits": False, "memory": None, "flops": None}, "|  |  | does not fit |"),
    ],
)
def test_a_row_has_memory_communication_and_time_if_known(changes, cells):
    assert cells in plans.markdown({"rows": [{**ROW, **changes}]}).splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "word"), [([], "pip install"), (["--topologies", "v5e"], "such as v5e:1x1")]
)
def test_impossible_plans_print_one_line(tmp_path, monkeypatch, capsys, arguments, word):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find_spec(name)
    )
    monkeypatch.setattr(sys, "argv", ["plans", f"--out={tmp_path / 'x'}", *arguments])
    assert plans.main() == 2
    assert word in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
