"""Statistics of a few accuracies, beside numbers worked out by hand and SciPy's."""

import math

import pytest
from scipy import stats

from harness.statistics import binomial_error, holm, paired_p, summarize, t_interval


def test_the_binomial_error_of_2000_examples():
    assert binomial_error(0.38, 2000) == pytest.approx(0.01085, abs=1e-5)


def test_the_interval_over_five_seeds_is_students():
    mean, half_width = t_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half_width == pytest.approx(2.7764 * 2.5**0.5 / 5**0.5, rel=1e-4)
    assert math.isnan(t_interval([1.0])[1])


def test_the_interval_is_scipys():
    values = [36.1, 37.9, 35.4]
    mean, half_width = t_interval(values)
    low, high = stats.t.interval(0.95, 2, loc=mean, scale=stats.sem(values))
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high))


def test_one_value_has_no_spread():
    assert summarize([2.0, 4.0, 6.0])[:3] == (3, 4.0, 2.0)
    alone = summarize([5.0])
    assert alone[:2] == (1, 5.0)
    assert math.isnan(alone.deviation)
    assert math.isnan(alone.half_width)


def test_the_paired_p_is_scipys():
    one, other = [36.0, 37.0, 38.5, 35.0], [35.5, 36.0, 38.0, 35.5]
    differences = [a - b for a, b in zip(one, other, strict=True)]
    assert paired_p(differences) == pytest.approx(stats.ttest_rel(one, other).pvalue)


@pytest.mark.parametrize(
    "differences", [[0.5], [0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 1.0, 1.000000000000007]]
)
def test_without_spread_there_is_no_p(differences):
    assert math.isnan(paired_p(differences))


def test_holms_correction_of_a_known_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_holm_does_not_count_what_was_not_tested():
    first, nothing, second = holm([0.01, math.nan, 0.04])
    assert (first, second) == pytest.approx((0.02, 0.04))
    assert math.isnan(nothing)
