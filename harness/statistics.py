"""What a few accuracies say, and what they do not."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Summary(NamedTuple):
    """Several seeds of one setting; spread and interval are NaN for one."""

    n: int
    mean: float
    deviation: float  # the standard deviation
    half_width: float  # of the 95 % Student t interval


def binomial_error(accuracy: float, examples: int) -> float:
    """The standard error of an accuracy that was counted on `examples` independent examples."""
    return math.sqrt(accuracy * (1 - accuracy) / examples)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half width of its 95 % Student t interval; NaN with fewer than two values."""
    from scipy import stats  # comes with jax

    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def summarize(values: Sequence[float]) -> Summary:
    """Mean, spread and interval of at least one value."""
    mean, half_width = t_interval(values)
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return Summary(len(values), mean, deviation, half_width)


def paired_p(differences: Sequence[float]) -> float:
    """The two-sided p of the paired t-test; NaN with fewer than two differences, or if all are equal."""
    from scipy import stats

    if len(differences) < 2:
        return math.nan
    # Equal differences of percentages differ in their last bits.
    if statistics.stdev(differences) < 1e-9 * max(1.0, abs(statistics.fmean(differences))):
        return math.nan
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return float(2 * stats.t.sf(abs(statistics.fmean(differences)) / error, len(differences) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusts p-values for their number; NaN stays NaN and does not count.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65–70, as adjusted p-values.
    """
    adjusted = [math.nan] * len(p_values)
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted
