"""Statistics of a few accuracies, compared with numbers computed by hand."""

import math

import pytest

from reporting.statistics import binomial_error, holm, paired_p, summarize


def test_binomial_error_of_an_accuracy_and_at_its_limits():
    assert binomial_error(0.38, 2000) == pytest.approx(0.01085, abs=1e-5)
    assert binomial_error(0.0, 4) == pytest.approx(0.1)  # √(1/64) / (1 + 1/4)
    assert binomial_error(1.0, 4) == binomial_error(0.0, 4)
    assert binomial_error(0.5, 4) < 0.25


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], (5, 3.0, 2.5**0.5, 2.7764 * 2.5**0.5 / 5**0.5)),  # Student's t
        ([2.0, 2.0, 2.0], (3, 2.0, 0.0, 0.0)),
        ([1.0, 3.0], (2, 2.0, 2**0.5, math.nan)),
        ([5.0], (1, 5.0, math.nan, math.nan)),
        ([], (0, math.nan, math.nan, math.nan)),
        ([math.nan, math.nan], (2, math.nan, math.nan, math.nan)),
        ([1.0, 2.0, math.nan], (3, math.nan, math.nan, math.nan)),
    ],
)
def test_mean_deviation_and_interval_over_seeds(values, expected):
    assert summarize(values) == pytest.approx(expected, rel=1e-4, nan_ok=True)


def test_paired_p_value_is_students_t_and_unknown_without_spread():
    # Differences 1, 2, 3: t = 2 / (1 / √3) with 2 degrees of freedom.
    assert paired_p([3.0, 5.0, 4.0], [2.0, 3.0, 1.0]) == pytest.approx(0.0742, abs=1e-4)
    for differences in ([0.5], [0.5, 0.5], [0.0, 0.0, 0.0], [1.0, 1.0, 1.000000000000007]):
        assert math.isnan(paired_p(differences, [0.0] * len(differences)))


def test_holm_correction_of_known_p_values():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == pytest.approx([1.0, 1.0])
    assert holm([0.01, math.nan, 0.04]) == pytest.approx([0.02, math.nan, 0.04], nan_ok=True)
