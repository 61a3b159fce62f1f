"""What the test set gives to a predictor that has learnt next to nothing."""

import numpy as np
import numpy.typing as npt

from lra.data.task import PairSplit, Split, Task


def baselines(task: Task) -> dict[str, float]:
    """Test accuracies of two trivial predictors, both fitted to the training set.

    "constant answer" gives the most frequent label. "first token alone" gives the most frequent label
    of the examples that begin alike, which on ListOps means: it knows the root operator. Pairs have
    only the first.
    """
    train, test = task.splits["train"], task.splits["test"]
    constant = np.bincount(train.labels).argmax()
    found = {"constant answer": float(np.mean(test.labels == constant))}
    if not isinstance(train, PairSplit) and not isinstance(test, PairSplit):
        counts = np.zeros((257, train.labels.max() + 1), np.int64)
        np.add.at(counts, (_first_tokens(train), train.labels), 1)
        counts[:, constant] += counts.sum(axis=1) == 0  # never seen: the constant answer
        answers = counts.argmax(axis=1)[_first_tokens(test)]
        found["first token alone"] = float(np.mean(test.labels == answers))
    return found


def _first_tokens(split: Split) -> npt.NDArray[np.int64]:
    """The first byte of every sequence as it is stored; 256 where there is none."""
    starts, ends = split.sequences.offsets[: len(split)], split.sequences.offsets[1:][: len(split)]
    first = np.full(len(split), 256)
    first[ends > starts] = split.sequences.tokens[starts[ends > starts]]
    return first
