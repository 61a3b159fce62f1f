"""Statistics over seeds: spread, confidence intervals and tests."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Summary(NamedTuple):
    """Summary over the seeds of a setting; what too few seeds do not have is NaN."""

    n: int
    mean: float
    deviation: float  # standard deviation
    half_width: float  # half width of the 95 % Student t interval


def binomial_error(accuracy: float, examples: int) -> float:
    """Returns the standard error of an accuracy over `examples` independent examples.

    Half the width of Wilson's score interval at one standard error. It approaches √(p (1 - p) / n) for many
    examples, and is not zero for an accuracy of 0 or 1.

    Source: Wilson 1927, Journal of the American Statistical Association 22, 209–212.
    """
    variance = accuracy * (1 - accuracy) / examples
    return math.sqrt(variance + 1 / (4 * examples**2)) / (1 + 1 / examples)


def summarize(values: Sequence[float]) -> Summary:
    """Returns the mean, standard deviation and 95 % interval; NaN of too few values or of any NaN.

    Two values have no interval: Student's would be 13 times as wide as their distance, or zero if they agree.
    """
    from scipy import stats  # a dependency of jax

    n = len(values)
    if any(math.isnan(value) for value in values):  # an error in `statistics`
        return Summary(n, math.nan, math.nan, math.nan)
    mean = statistics.fmean(values) if n else math.nan
    deviation = statistics.stdev(values) if n > 1 else math.nan
    if n < 3:
        return Summary(n, mean, deviation, math.nan)
    _, quantile = stats.t.interval(0.95, n - 1)  # unscaled, because SciPy does not support scale 0
    return Summary(n, mean, deviation, float(quantile) * deviation / math.sqrt(n))


def paired_p(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns the two-sided p-value of the paired t-test; NaN without two pairs or without spread."""
    from scipy import stats

    differences = [one - other for one, other in zip(first, second, strict=True)]
    # Equal differences of percentages may differ by rounding.
    if len(differences) < 2 or statistics.stdev(differences) < 1e-9 * max(1, abs(differences[0])):
        return math.nan
    return float(stats.ttest_rel(first, second).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values with the Holm correction for multiple tests; NaN stays NaN and is not counted.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65–70.
    """
    adjusted = [math.nan] * len(p_values)
    order = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = largest
    return adjusted


def format_spread(mean: float, deviation: float, digits: int = 2) -> str:
    """Formats "mean ± deviation", or only the mean if the deviation is NaN."""
    spread = "" if math.isnan(deviation) else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"
