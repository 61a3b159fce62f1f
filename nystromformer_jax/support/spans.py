"""The best span of extractive question answering."""

import numpy as np
import numpy.typing as npt

NUM_BEST = 20  # starts and ends to combine into spans, as in BERT's run_squad.py
MAX_ANSWER_TOKENS = 30  # as in BERT's run_squad.py


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
