"""The report of `results/` recomputed from its JSON files with pandas and SciPy alone."""

import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lra.report.groups import compare, group, read


@pytest.fixture(scope="module")
def ours(results):
    runs = read([results])[0]
    return runs, group(runs)


def test_means_deviations_and_intervals(results, ours):
    runs, groups = ours
    values = [
        {
            "name": name,
            "accuracy": 100 * json.loads((folder / "result.json").read_text())["test_accuracy"],
        }
        for name, folder, state in zip(runs["name"], runs["folder"], runs["state"], strict=True)
        if state == "complete"
    ]
    table = runs.merge(pd.DataFrame(values), on="name")
    keys = table["task"] + table["setting"].map(str)
    expected = table.groupby(keys)["accuracy"].agg(["mean", "std", "count", "sem"])
    complete = groups[groups["state"] == "complete"]
    found = complete.set_index(complete["task"] + complete["setting"].map(str)).loc[expected.index]
    np.testing.assert_allclose(found["mean"], expected["mean"])
    np.testing.assert_allclose(found["deviation"], expected["std"])
    several = expected["count"] > 2
    quantiles = stats.t.ppf(0.975, expected["count"] - 1)
    np.testing.assert_allclose(found["half_width"][several], (quantiles * expected["sem"])[several])
    assert several.sum() >= 15
    assert found["half_width"][~several].isna().all()


def test_corrected_p_values(ours):
    groups = ours[1].set_index(["task", "name"])
    found = compare(ours[1])
    paired = found[found["p"].notna()].sort_values("p")
    for row in paired.itertuples():
        one, other = (
            groups.loc[(row.task, name), "accuracies"] for name in (row.first, row.second)
        )
        p = stats.ttest_rel([one[s] for s in row.seeds], [other[s] for s in row.seeds]).pvalue
        assert row.p == pytest.approx(p, rel=1e-6)
    factors = np.arange(len(paired), 0, -1)
    holm = (paired["p"] * factors).cummax().clip(upper=1)
    np.testing.assert_allclose(paired["p_holm"], holm)
    assert len(paired) >= 15
