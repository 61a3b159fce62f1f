"""Coverage of the tables of plans, and their cells for unknown numbers."""

import itertools
import json
import sys
from pathlib import Path

import pytest

from benchmarks import plans

PLANS = Path(__file__).parents[2] / "results" / "plans"


def rows_of(table):
    return json.loads((PLANS / table).read_text())["rows"]


@pytest.mark.usefixtures("results")
def test_every_config_is_planned_for_every_topology():
    covered = {(row["config"], row["topology"]) for row in rows_of("table.json")}
    assert covered == set(itertools.product(plans.CONFIGS, plans.TOPOLOGIES))


@pytest.mark.usefixtures("results")
def test_both_scalings_are_planned_for_every_number_of_chips():
    covered = {(row["fixed"], row["chips"]) for row in rows_of("scaling.json")}
    assert covered == set(itertools.product(plans.FIXED, plans.SCALES))


@pytest.mark.usefixtures("results")
def test_unknown_numbers_are_empty_cells():
    unknown = {"collectives": None, "compute_seconds": None, "link_seconds": None}
    table = plans.markdown({"rows": [rows_of("table.json")[0] | unknown]})
    assert table.endswith(" |  |  |  |\n")
    scaled = rows_of("scaling.json")[0] | unknown
    assert plans.scaling_markdown({"rows": [scaled]}).endswith(" |  |  |\n")
    scaled |= {"flops": None, "memory_bytes": None}
    assert plans.scaling_markdown({"rows": [scaled]}).endswith(" |  |  |  |  |\n")
    unknown |= {"fits": False, "memory_bytes": None}
    table = plans.cost_markdown({"rows": [rows_of("open.json")[0] | unknown]})
    assert table.endswith("| does not fit |  | 20,000 |  |  |\n")


@pytest.mark.usefixtures("results")
def test_chip_hours_are_those_of_all_devices():
    known = {"steps": 7200, "devices": 8, "compute_seconds": 0.4, "link_seconds": 0.1}
    table = plans.cost_markdown({"rows": [rows_of("open.json")[0] | known]})
    assert table.endswith(" | 500 | 7,200 | 1.00 | 8.00 |\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out=x"], "--topology needs libtpu"),
        (["--out=x", "--cell", "listops", "v5e:2x2"], "--topology needs libtpu"),
        (["--out=x", "--cell", "lisstops", "v5e:2x2"], "No module named 'configs.lisstops'"),
    ],
)
def test_impossible_plans_print_one_line(monkeypatch, capsys, arguments, words):
    find_spec = plans.importlib.util.find_spec
    monkeypatch.setattr(
        plans.importlib.util,
        "find_spec",
        lambda name: None if name == "libtpu" else find_spec(name),
    )
    monkeypatch.setattr(sys, "argv", ["plans", *arguments])
    with pytest.raises(SystemExit) as ended:
        plans.main()
    assert ended.value.code == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
