"""The best span beside a search over all pairs."""

import numpy as np
import pytest

from nystromformer_jax.support.predictions import MAX_ANSWER_TOKENS, best_span


def test_best_span_equals_a_search_over_all_pairs():
    rng = np.random.default_rng(4)
    for length in (1, 2, 13, 61):
        start, end = rng.normal(size=(2, length)).astype(np.float32)
        start[-1] += 3  # the best start is often after the best end
        pairs = [
            (start[i] + end[j], i, j)
            for i in range(length)
            for j in range(i, min(i + MAX_ANSWER_TOKENS, length))
        ]
        assert best_span(start, end) == pytest.approx(max(pairs))
