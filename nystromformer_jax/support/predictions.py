"""Predictions from the outputs of a model: probabilities, tags of words and answers. Does not import jax.

Runs of fine-tuning, predictions for new files and `LanguageModel` use the same functions.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

BASE_LEN = 64  # smallest padded length
NUM_BEST = 20  # starts and ends to combine into spans, as in BERT's run_squad.py
MAX_ANSWER_TOKENS = 30  # as in BERT's run_squad.py


class Window(NamedTuple):
    """Outputs for a question and a part of its context."""

    question: int  # index of the question
    start_logits: npt.NDArray[np.float32]  # [L]
    end_logits: npt.NDArray[np.float32]  # [L]
    offset: int  # position of the first token of the context
    spans: npt.NDArray[np.int32]  # [T, 2], start and end of each token of the context in characters


def padded_len(longest: int, max_len: int, base_len: int = BASE_LEN) -> int:
    """Returns the padded length of a batch: `base_len` times a power of two, at most `max_len`."""
    length = base_len
    while length < longest:
        length *= 2
    return min(length, max_len)


def probabilities(logits: npt.NDArray[Any], *, is_multi_label: bool) -> npt.NDArray[np.float64]:
    """Returns the probabilities of classes, or those of several independent labels, [N, C].

    In float32, different probabilities near 1 would be equal.
    """
    logits = logits.astype(np.float64)
    if is_multi_label or logits.shape[1] == 2:
        margins = logits if is_multi_label else logits - logits[:, ::-1]
        return np.exp(-np.logaddexp(0, -margins))
    return np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))


def word_tags(
    classes: npt.NDArray[np.integer], positions: Sequence[int], labels: Sequence[str]
) -> list[str]:
    """Returns the tag of each word of a row: the class of its first token; `positions` are those of words."""
    return [labels[i] for i in classes[positions].tolist()]


def best_answers(
    windows: Iterable[Window], contexts: Sequence[str], *, has_unanswerable: bool
) -> list[tuple[str, float]]:
    """Returns the answer to each question, the best span over all its windows, and its score.

    The score is the sum of two logits. An answer is empty if no window has a token of the context, or, if
    `has_unanswerable`, if the first token, [CLS], has a higher score in every window than the best span.
    """
    texts = [""] * len(contexts)
    best, empty = np.full(len(contexts), -np.inf), np.full(len(contexts), np.inf)
    for question, start_logits, end_logits, offset, spans in windows:
        empty[question] = min(empty[question], start_logits[0] + end_logits[0])
        if not len(spans):
            continue
        inside = slice(offset, offset + len(spans))
        score, first, last = best_span(start_logits[inside], end_logits[inside])
        if score > best[question]:
            best[question] = score
            texts[question] = contexts[question][spans[first][0] : spans[last][1]].strip()
    is_empty = (best == -np.inf) | (has_unanswerable & (empty > best))
    return [
        ("", float(empty[i])) if is_empty[i] else (text, float(best[i]))
        for i, text in enumerate(texts)
    ]


def best_span(
    start_logits: npt.NDArray[np.float32], end_logits: npt.NDArray[np.float32]
) -> tuple[float, int, int]:
    """Returns score, first and last token of the span with the highest sum of both logits.

    A span has at most `MAX_ANSWER_TOKENS` tokens. Its start is one of the `NUM_BEST` best starts, and its end
    one of the `NUM_BEST` best ends. If no such pair is a span, the result is the best single token.
    """
    starts = np.argsort(-start_logits, kind="stable")[:NUM_BEST]
    ends = np.argsort(-end_logits, kind="stable")[:NUM_BEST]
    sums = start_logits[starts][:, None] + end_logits[ends][None]
    length = ends[None] - starts[:, None] + 1
    sums = np.where((length > 0) & (length <= MAX_ANSWER_TOKENS), sums, -np.inf)
    row, column = np.unravel_index(sums.argmax(), sums.shape)
    if not np.isfinite(sums[row, column]):
        best = int((start_logits + end_logits).argmax())
        return float(start_logits[best] + end_logits[best]), best, best
    return float(sums[row, column]), int(starts[row]), int(ends[column])
