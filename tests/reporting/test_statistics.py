"""Statistics of a few accuracies, compared with numbers computed by hand."""

import math

import pytest

from reporting.statistics import binomial_error, holm, paired_p, summarize


def test_binomial_error_of_2000_examples():
    assert binomial_error(0.38, 2000) == pytest.approx(0.01085, abs=1e-5)


def test_binomial_error_of_accuracy_zero_or_one_is_positive():
    assert binomial_error(0.0, 4) == pytest.approx(0.1)  # √(1/64) / (1 + 1/4)
    assert binomial_error(1.0, 4) == binomial_error(0.0, 4)
    assert binomial_error(0.5, 4) < 0.25


def test_interval_over_five_seeds_is_students_t():
    summary = summarize([1.0, 2.0, 3.0, 4.0, 5.0])
    assert summary[:3] == (5, 3.0, pytest.approx(2.5**0.5))
    assert summary.half_width == pytest.approx(2.7764 * 2.5**0.5 / 5**0.5, rel=1e-4)


def test_interval_of_equal_values_has_zero_width():
    assert summarize([2.0, 2.0, 2.0]) == (3, 2.0, 0.0, 0.0)


def test_two_values_have_no_interval():
    pair = summarize([1.0, 3.0])
    assert pair[:3] == (2, 2.0, pytest.approx(2**0.5))
    assert math.isnan(pair.half_width)


def test_one_value_has_no_spread():
    alone = summarize([5.0])
    assert alone[:2] == (1, 5.0)
    assert math.isnan(alone.deviation)
    assert math.isnan(alone.half_width)


def test_paired_p_value_is_students_t():
    # Differences 1, 2, 3: t = 2 / (1 / √3) with 2 degrees of freedom.
    assert paired_p([3.0, 5.0, 4.0], [2.0, 3.0, 1.0]) == pytest.approx(0.0742, abs=1e-4)


@pytest.mark.parametrize(
    "differences", [[0.5], [0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 1.0, 1.000000000000007]]
)
def test_no_p_value_without_spread(differences):
    assert math.isnan(paired_p(differences, [0.0] * len(differences)))


def test_holm_correction_of_a_known_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]


def test_holm_correction_ignores_missing_p_values():
    first, nothing, second = holm([0.01, math.nan, 0.04])
    assert (first, second) == pytest.approx((0.02, 0.04))
    assert math.isnan(nothing)
