"""Metrics and standard errors of sequence tasks, computed with scikit-learn and SciPy.

Correlations of constant predictions or labels are undefined. They are set to 0, with a logged warning.
"""

import logging
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from language.finetune.task import Metric, Task, ratio_error

Values = npt.NDArray[Any]

_logger = logging.getLogger(__name__)


def score(task: Task, predicted: Values, labels: Values) -> dict[str, float]:
    """Returns all metrics of a task; the first one selects checkpoints.

    `predicted` is [N] with classes or scores; for multi-label tasks it is [N, C] with 1 at predicted labels.
    """
    return {name: _score(name, predicted, labels) for name in task.metrics}


def standard_error(task: Task, predicted: Values, labels: Values) -> dict[str, float]:
    """Returns the standard errors of `score` over the examples, for one training run.

    Accuracy: binomial. F1, Matthews and Pearson: delta method. Spearman: Bonett and Wright. For constant
    predictions or labels, the error of a correlation is 0. MSE: standard error of the mean. Macro F1 is left
    out.
    """
    return {
        name: _standard_error(name, predicted, labels)
        for name in task.metrics
        if name != "macro_f1"
    }


def _score(metric: Metric, predicted: Values, labels: Values) -> float:
    from scipy import stats
    from sklearn import metrics

    if metric == "accuracy":  # for several labels: share of examples with all labels right
        return float(metrics.accuracy_score(labels, predicted))
    if metric == "f1":  # of class 1
        return float(metrics.f1_score(labels, predicted, pos_label=1, zero_division=0.0))
    if metric in ("macro_f1", "micro_f1"):
        average = metric.removesuffix("_f1")
        return float(metrics.f1_score(labels, predicted, average=average, zero_division=0.0))
    if metric == "mse":
        return float(metrics.mean_squared_error(labels, predicted))
    for source, values in (("predictions", predicted), ("labels", labels)):
        if _is_constant(values):
            _logger.warning(
                "%s correlation counts as 0: all %d %s are the same.",
                metric.capitalize(),
                len(values),
                source,
            )
            return 0.0
    if metric == "matthews":
        return float(metrics.matthews_corrcoef(labels, predicted))
    correlate = stats.pearsonr if metric == "pearson" else stats.spearmanr
    return float(correlate(predicted.astype(np.float64), labels.astype(np.float64)).statistic)


def _standard_error(metric: Metric, predicted: Values, labels: Values) -> float:
    ones = np.ones(len(labels))
    if metric == "accuracy":
        right = (predicted == labels).reshape(len(labels), -1).all(axis=1)
        return ratio_error(right, ones)
    if metric in ("f1", "micro_f1"):
        hits = ((predicted == 1) & (labels == 1)).reshape(len(labels), -1).sum(axis=1)
        misses = ((predicted == 1) != (labels == 1)).reshape(len(labels), -1).sum(axis=1)
        return ratio_error(2 * hits, 2 * hits + misses) if hits.any() else 0.0
    if metric == "mse":
        return ratio_error(np.square(predicted.astype(np.float64) - labels), ones)
    if _is_constant(predicted) or _is_constant(labels):
        return 0.0
    if metric == "spearman":
        # Source: Bonett and Wright 2000, Psychometrika 65, 23–28; the variance of arctanh r is
        # (1 + r² / 2) / (n - 3).
        if len(labels) < 4:
            return 0.0
        r = _score(metric, predicted, labels)
        return (1 - r**2) * math.sqrt((1 + r**2 / 2) / (len(labels) - 3))
    # Delta method for a correlation. Matthews' coefficient is the correlation of zeros and ones.
    u, v = (
        (values - values.mean()) / values.std()
        for values in (predicted.astype(np.float64), labels.astype(np.float64))
    )
    influence = u * v - np.mean(u * v) * (u**2 + v**2) / 2
    return math.sqrt(float(np.mean(influence**2)) / len(labels))


def _is_constant(values: Values) -> bool:
    """Returns True if all values are equal up to rounding."""
    values = values.astype(np.float64)
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())
