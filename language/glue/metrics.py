"""GLUE metrics and standard errors, computed with scikit-learn and SciPy.

Correlations of constant predictions or labels are undefined. They are set to 0, with a logged warning.
"""

import logging
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from language.glue.tasks import GlueTask, Metric

Values = npt.NDArray[Any]

_logger = logging.getLogger(__name__)


def predictions(task: GlueTask, outputs: Values) -> Values:
    """Returns predicted classes [N] from logits [N, C], or predicted scores [N] from outputs [N, 1]."""
    if outputs.ndim != 2 or outputs.shape[1] != task.num_labels:
        raise ValueError(
            f"Outputs for {task.title} must have the shape [N, {task.num_labels}], got"
            f" {list(outputs.shape)}."
        )
    if not np.isfinite(outputs).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(outputs))} of the outputs for {task.title} are not"
            " finite, so no metric can be computed."
        )
    return outputs[:, 0] if task.is_regression else outputs.argmax(axis=-1).astype(np.int32)


def score(task: GlueTask, predicted: Values, labels: Values) -> dict[str, float]:
    """Returns all metrics of a task, each from -1 to 1; the first one selects checkpoints.

    `predicted` [N] has classes or scores, as returned by `predictions`.
    """
    return {name: _score(name, predicted, labels) for name in task.metrics}


def standard_error(task: GlueTask, predicted: Values, labels: Values) -> dict[str, float]:
    """Returns the standard errors of `score` over the examples, for one training run.

    Accuracy: binomial. F1, Matthews and Pearson: delta method. Spearman: Bonett and Wright. For constant
    predictions or labels the error is 0.
    """
    return {name: _standard_error(name, predicted, labels) for name in task.metrics}


def _score(metric: Metric, predicted: Values, labels: Values) -> float:
    from scipy import stats
    from sklearn import metrics

    if metric == "accuracy":
        return float(metrics.accuracy_score(labels, predicted))
    if metric == "f1":  # of class 1
        return float(metrics.f1_score(labels, predicted, pos_label=1, zero_division=0.0))
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
    if metric == "accuracy":
        share = float(np.mean(predicted == labels))
        return math.sqrt(share * (1 - share) / len(labels))
    if metric == "f1":  # the delta method for 2 TP / (2 TP + FP + FN), a ratio of two means
        hits = np.count_nonzero((predicted == 1) & (labels == 1))
        misses = np.count_nonzero((predicted == 1) != (labels == 1))
        if not hits:
            return 0.0
        f1 = 2 * hits / (2 * hits + misses)
        return math.sqrt(4 * hits * (1 - f1) ** 2 + misses * f1**2) / (2 * hits + misses)
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
