"""The kill script with few kills; results/faults has its results with many."""

import json

import pytest

from tests.faults.jobs import JOBS
from tests.faults.kill_points import kill_at_random


@pytest.mark.slow(minutes=4)
@pytest.mark.parametrize(("name", "kills"), [("training", 20), ("preparation", 5), ("report", 5)])
def test_kills_at_random_moments_change_no_bits(request, tmp_path, name, kills):
    """Kills during the start, steps, evaluations, saves and the writing of the result."""
    if name == "report":
        request.getfixturevalue("results")
    tally = kill_at_random(JOBS[name], kills, tmp_path)
    assert tally.kills == kills
    assert tally.is_clean, tally


def test_stored_results_have_no_lost_step(results):
    """The stored results have no lost steps and no differences at the end."""
    found = [json.loads(file.read_text()) for file in (results / "faults").glob("training*.json")]
    assert sum(one["kills"] for one in found) >= 200
    for file in (results / "faults").glob("*.json"):
        one = json.loads(file.read_text())
        assert one["kills"] == sum(one["kills_in"].values()), file
        assert one["finished"] > 0, file
        assert one["differing"] == one["lost_steps"] == 0, file
