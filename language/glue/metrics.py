"""GLUE's metrics, and how far they can be trusted: scikit-learn's and SciPy's, with standard errors.

Where a metric is undefined, because predictions or labels are all the same, it counts as 0 and a
warning of the log says why.
"""

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from language.glue.tasks import GlueTask, Metric

Values = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_logger = logging.getLogger(__name__)


def predictions(task: GlueTask, outputs: Values) -> Values:
    """What a model's outputs say: classes, or scores as they are.

    Args:
      task: whose outputs they are.
      outputs: logits [N, C], scores [N, 1] or [N]; predictions [N] are returned as they came.

    Raises:
      ValueError: Another shape, a class that the task has not, or a number that is not finite.
    """
    outputs = np.asarray(outputs)
    is_class = not task.is_regression and outputs.ndim == 1
    shapes = "[N] or [N, 1]" if task.is_regression else f"[N] or [N, {task.num_labels}]"
    if outputs.ndim not in (1, 2) or (outputs.ndim == 2 and outputs.shape[1] != task.num_labels):
        raise ValueError(
            f"Outputs for {task.title} have the shape {shapes}, not {list(outputs.shape)}."
        )
    if not np.isfinite(outputs).all():
        raise ValueError(
            f"{np.count_nonzero(~np.isfinite(outputs))} of the outputs for {task.title} are not"
            " finite: the model is broken, and nothing can be scored."
        )
    if is_class:
        if not np.isin(outputs, np.arange(task.num_labels)).all():
            raise ValueError(
                f"Predictions for {task.title} are classes from 0 to {task.num_labels - 1};"
                f" these go from {outputs.min()} to {outputs.max()}."
            )
        return outputs.astype(np.int32)
    return outputs.reshape(-1) if task.is_regression else outputs.argmax(axis=-1).astype(np.int32)


def score(task: GlueTask, outputs: Values, labels: Values) -> dict[str, float]:
    """All metrics of a task, each between -1 and 1, the one that selects first.

    Args:
      task: whose outputs they are.
      outputs: logits, scores or predictions; see `predictions`.
      labels: [N].

    Raises:
      ValueError: Outputs that cannot be read, another number of labels, or none.
    """
    guesses, labels = _both(task, outputs, labels)
    return {name: _SCORES[name](guesses, labels) for name in task.metrics}


def standard_error(task: GlueTask, outputs: Values, labels: Values) -> dict[str, float]:
    """Standard errors of `score`: how much the metrics would change on other examples of their kind.

    Binomial for accuracy; the delta method for F1, Matthews and Pearson; Bonett and Wright's for
    Spearman. They know nothing of seeds. 0 where predictions or labels are all the same.
    """
    guesses, labels = _both(task, outputs, labels)
    return {name: _ERRORS[name](guesses, labels) for name in task.metrics}


def _both(task: GlueTask, outputs: Values, labels: Values) -> tuple[Values, Values]:
    guesses, labels = predictions(task, outputs), np.asarray(labels)
    if labels.shape != guesses.shape or not len(labels):
        raise ValueError(
            f"{task.title} needs a label for each of one prediction or more; there are"
            f" {len(labels):,} labels and {len(guesses):,} predictions."
        )
    return guesses, labels


def _accuracy(guesses: Values, labels: Values) -> float:
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, guesses))


def _accuracy_error(guesses: Values, labels: Values) -> float:
    share = float(np.mean(guesses == labels))
    return math.sqrt(share * (1 - share) / len(labels))


def _f1(guesses: Values, labels: Values) -> float:
    """Of the class 1."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, guesses, pos_label=1, zero_division=0.0))


def _f1_error(guesses: Values, labels: Values) -> float:
    """The delta method for F1 = 2 TP / (2 TP + FP + FN), a ratio of two means."""
    hits = np.count_nonzero((guesses == 1) & (labels == 1))
    misses = np.count_nonzero((guesses == 1) != (labels == 1))
    if not hits:
        return 0.0
    f1 = 2 * hits / (2 * hits + misses)
    return math.sqrt(4 * hits * (1 - f1) ** 2 + misses * f1**2) / (2 * hits + misses)


def _matthews(guesses: Values, labels: Values) -> float:
    from sklearn.metrics import matthews_corrcoef

    if _says_nothing("Matthews' coefficient", guesses, labels):
        return 0.0
    return float(matthews_corrcoef(labels, guesses))


def _pearson(guesses: Values, labels: Values) -> float:
    from scipy import stats

    if _says_nothing("Pearson's correlation", guesses, labels):
        return 0.0
    return float(stats.pearsonr(guesses.astype(np.float64), labels.astype(np.float64)).statistic)


def _pearson_error(guesses: Values, labels: Values) -> float:
    """The delta method for a correlation; Matthews' coefficient is that of zeros and ones."""
    if _is_constant(guesses) or _is_constant(labels):
        return 0.0
    u, v = _standardized(guesses), _standardized(labels)
    influence = u * v - np.mean(u * v) * (u**2 + v**2) / 2
    return math.sqrt(float(np.mean(influence**2)) / len(labels))


def _spearman(guesses: Values, labels: Values) -> float:
    from scipy import stats

    if _says_nothing("Spearman's correlation", guesses, labels):
        return 0.0
    return float(stats.spearmanr(guesses, labels).statistic)


def _spearman_error(guesses: Values, labels: Values) -> float:
    """Source: Bonett and Wright 2000, Psychometrika 65, 23–28: (1 + r² / 2) / (n - 3) for arctanh r."""
    if _is_constant(guesses) or _is_constant(labels) or len(labels) < 4:
        return 0.0
    r = _spearman(guesses, labels)
    return (1 - r**2) * math.sqrt((1 + r**2 / 2) / (len(labels) - 3))


def _standardized(values: Values) -> Floats:
    values = values.astype(np.float64)
    found: Floats = (values - values.mean()) / values.std()
    return found


def _is_constant(values: Values) -> bool:
    """Also where what differs is the last bits."""
    values = values.astype(np.float64)
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())


def _says_nothing(name: str, guesses: Values, labels: Values) -> bool:
    for what, values in (("predictions", guesses), ("labels", labels)):
        if _is_constant(values):
            _logger.warning("%s counts as 0: all %d %s are the same.", name, len(values), what)
            return True
    return False


_SCORES: Mapping[Metric, Callable[[Values, Values], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
_ERRORS: Mapping[Metric, Callable[[Values, Values], float]] = {
    "accuracy": _accuracy_error,
    "f1": _f1_error,
    "matthews": _pearson_error,
    "pearson": _pearson_error,
    "spearman": _spearman_error,
}
