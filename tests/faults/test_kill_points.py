"""The kill script itself, with fewer kills; results/faults holds what it found with more."""

import json

import pytest

from tests.faults.jobs import JOBS
from tests.faults.kill_points import kill_at_random


@pytest.mark.slow(minutes=4)
@pytest.mark.parametrize(("name", "kills"), [("training", 20), ("preparation", 5), ("report", 5)])
def test_kills_at_random_moments_change_no_bits(request, tmp_path, name, kills):
    """At the start, in steps, in evaluations, in saves and while the result is written."""
    if name == "report":
        request.getfixturevalue("results")
    tally = kill_at_random(JOBS[name], kills, tmp_path)
    assert tally.kills == kills
    assert tally.is_clean, tally


def test_stored_results_have_no_lost_step(results):
    """The published results have no lost step and no differing end."""
    found = [json.loads(file.read_text()) for file in (results / "faults").glob("training*.json")]
    assert sum(one["kills"] for one in found) >= 200
    for file in (results / "faults").glob("*.json"):
        one = json.loads(file.read_text())
        assert one["kills"] == sum(one["kills_in"].values()), file
        assert one["finished"] > 0, file
        assert one["differing"] == one["lost_steps"] == 0, file
