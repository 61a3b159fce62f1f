"""The tables of plans: their cells for unknown numbers, and errors."""

import importlib.util
import sys

import pytest

from benchmarks import plans

ROW = {
    "config": "listops",
    "topology": "v5e:2x2",
    "each": "0",
    "devices": 4,
    "sequence": 2,
    "batch_size": 8,
    "steps": 7200,
    "memory": {
        "params": 2**20,
        "optimizer": 2**20,
        "batch": 0,
        "other": 0,
        "temporaries": 3 * 2**20,
        "code": 0,
    },
    "fits": True,
    "flops": 2e9,
    "collectives": {"all-reduce": {"count": 2, "nbytes": 2**20}},
    "compute_seconds": 0.4,
    "link_seconds": 0.1,
}


def last(**changes):
    return plans.markdown({"rows": [{**ROW, **changes}]}).splitlines()[-1]


def test_a_row_has_memory_communication_and_time():
    assert last() == ("| `listops` | v5e:2x2 (2 × 2) | 8 | 2.0 | 3 | 5 | 2.00 | 1.00 | 500 | 1 |")


def test_unknown_numbers_are_empty_cells():
    assert last(collectives=None, link_seconds=None).endswith("| 2.00 |  |  |  |")
    assert "| 5 does not fit |" in last(fits=False)
    assert "|  |  | does not fit |" in last(fits=False, memory=None, flops=None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out=x"], "pip install"),
        (["--out=x", "--cell", "listops", "v5e:2x2", "0"], "pip install"),
        (["--out=x", "--cell", "listops", "v5e", "0"], "such as v5e:1x1"),
    ],
)
def test_impossible_plans_print_one_line(monkeypatch, capsys, arguments, words):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find_spec(name)
    )
    monkeypatch.setattr(sys, "argv", ["plans", *arguments])
    with pytest.raises(SystemExit) as ended:
        plans.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
