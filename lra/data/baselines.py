"""Test accuracies of trivial predictors, as baselines for trained models."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from lra.data import mqar
from lra.data.listops import OPERATORS, VOCAB
from lra.data.task import Sequences, Split, Task

# Numbers of tokens at each end of a ListOps tree. With 1, only the first token matters: trees end with "]".
END_TOKENS = (2, 4, 9)
DEPTHS = 3  # the root, its arguments, all deeper tokens
# A feature is numbered by root operator, end, depth, token, and whether the token is repeated, in this order.
FEATURES_PER_ROOT = 2 * DEPTHS * len(VOCAB) * 2
# With 15 passes instead of 5, accuracies change by less than the binomial error of 2,000 test trees.
PASSES, BATCH_SIZE, LEARNING_RATE = 5, 500, 4.0
# Text: length of the n-grams (of 5, 6, 7, 8 and 10 the best on the validation set), number of bytes of a
# review that the benchmark reads, and logarithm of the number of buckets into which n-grams are hashed.
NGRAM, READ_BYTES, LOG2_BUCKETS = 10, 4000, 22


def baselines(task: Task) -> dict[str, float]:
    """Fits trivial predictors to the training set and returns their test accuracies by name.

    "constant answer" predicts the most frequent label. "first token alone" predicts the most frequent
    label of the training examples with the same first token, which is the root operator on ListOps; it
    is not computed for pairs or labeled tokens.

    "first and last k tokens" (ListOps only) is a softmax regression on the tokens at both ends, with
    separate weights for each root operator. Each token has four features: which end it is at, its value,
    its depth (an argument of the root, or deeper), and whether the same token occurs before it at this end.
    The position of a token is not a feature, because no operator depends on the order of its arguments.
    An n-gram table with back-off reaches only about 40 % for any k, because long contexts do not repeat.
    On 96,000 trees all fits together take about three seconds.

    "most frequent value" (MQAR only) predicts the most frequent value of the sequence for all of its
    queries. The accuracy is the expected one.

    "naive Bayes on 10 bytes" (Text only) is multinomial naive Bayes on all substrings of ten bytes, with one
    added to each count. It takes about 20 seconds.
    """
    train, test = task.splits["train"], task.splits["test"]
    constant = np.bincount(train.labels.ravel()).argmax()
    accuracies = {"constant answer": float(np.mean(test.labels == constant))}
    if train.pairs is None and train.positions is None:
        counts = np.zeros((257, train.labels.max() + 1), np.int64)
        np.add.at(counts, (_first_tokens(train), train.labels), 1)
        counts[:, constant] += counts.sum(axis=1) == 0  # unseen tokens predict the constant answer
        answers = counts.argmax(axis=1)[_first_tokens(test)]
        accuracies["first token alone"] = float(np.mean(test.labels == answers))
        if task.name.startswith("listops"):
            for k in END_TOKENS:
                weights = _fit(_end_features(train, k), train.labels)
                answers = weights[_end_features(test, k)].sum(axis=1).argmax(axis=1)
                accuracies[f"first and last {k} tokens"] = float(np.mean(test.labels == answers))
    if size := mqar.size_of(task.name):
        accuracies["most frequent value"] = mqar.most_frequent(size[1])
    if task.name == "text":
        answers = _naive_bayes(train, test)
        accuracies[f"naive Bayes on {NGRAM} bytes"] = float(np.mean(test.labels == answers))
    return accuracies


def _naive_bayes(train: Split, test: Split) -> npt.NDArray[np.int64]:
    """Returns the labels of the `test` sequences that naive Bayes predicts from their n-grams, [N]."""
    sizes = np.bincount(train.labels)
    counts = np.ones((len(sizes), 2**LOG2_BUCKETS), np.float32)
    for buckets, rows in _ngrams(train):
        np.add.at(counts, (train.labels[rows], buckets), 1)
    weights = np.log(counts / counts.sum(axis=1, keepdims=True))
    scores = np.log(np.maximum(sizes, 1))[:, None].repeat(len(test), axis=1)  # [C, N]
    for buckets, rows in _ngrams(test):
        for score, weight in zip(scores, weights, strict=True):
            score += np.bincount(rows, weight[buckets], len(test))
    return scores.argmax(axis=0)


def _ngrams(split: Split) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yields the hashed n-grams and the rows of their sequences, 1,000 sequences at a time."""
    sequences = split.sequences
    for first in range(0, len(split), 1000):
        rows = np.arange(first, min(first + 1000, len(split)))
        starts = sequences.offsets[rows]
        lengths = np.minimum(sequences.offsets[rows + 1] - starts, READ_BYTES)
        row = rows.repeat(lengths)
        shift = (starts - lengths.cumsum() + lengths).repeat(lengths)
        tokens = sequences.tokens[np.arange(len(row)) + shift].astype(np.uint64)
        count = max(len(row) - NGRAM + 1, 0)
        hashes = np.zeros(count, np.uint64)
        for i in range(NGRAM):
            hashes = hashes * np.uint64(0x9E3779B97F4A7C15) + tokens[i : i + count] + np.uint64(1)
        hashes ^= hashes >> np.uint64(32)
        buckets = hashes * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(64 - LOG2_BUCKETS)
        # The first and the last byte must be of one sequence.
        is_within = row[:count] == row[len(row) - count :]
        yield buckets[is_within].astype(np.int64), row[:count][is_within]


def _first_tokens(split: Split) -> npt.NDArray[np.int64]:
    """Returns the first stored byte of each sequence, or 256 for an empty sequence, [N]."""
    starts, ends = split.sequences.offsets[: len(split)], split.sequences.offsets[1:][: len(split)]
    first = np.full(len(split), 256)
    first[ends > starts] = split.sequences.tokens[starts[ends > starts]]
    return first


def _end_features(split: Split, k: int) -> npt.NDArray[np.int64]:
    """Returns the feature indices of the first and last `k` tokens of each tree, [N, 2 k]."""
    sequences, opening = split.sequences, [VOCAB[operator] for operator in OPERATORS]
    rows = np.arange(len(split))[:, None]
    starts, stops = sequences.offsets[rows], sequences.offsets[rows + 1]
    first = _tokens_at(sequences, starts + np.arange(k), starts, stops)
    last = _tokens_at(sequences, stops - 1 - np.arange(k), starts, stops)  # from the last token on
    features = []
    for end, tokens in enumerate((first, last)):
        begins, ends = np.isin(tokens, opening), tokens == VOCAB["]"]
        if end:  # the last tokens are in reverse order
            begins, ends = ends, begins
        depth = np.cumsum(begins.astype(int) - ends, axis=1) - begins
        kind = (end * DEPTHS + depth.clip(0, DEPTHS - 1)) * len(VOCAB) + tokens
        repeated = [(kind[:, :i] == kind[:, [i]]).any(axis=1) for i in range(k)]
        features.append(2 * kind + np.stack(repeated, axis=1))
    return np.concatenate(features, axis=1) + first[:, :1] * FEATURES_PER_ROOT


def _tokens_at(
    sequences: Sequences,
    positions: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    stops: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Returns the stored tokens at `positions`; 0 for positions outside of their sequence."""
    inside = (starts <= positions) & (positions < stops)
    return np.where(inside, sequences.tokens[np.where(inside, positions, 0)], 0).astype(np.int64)


def _fit(features: npt.NDArray[np.int64], labels: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Fits a softmax regression on feature indices [N, F] by stochastic gradient descent.

    Returns:
      Weights [number of features, C]. The logits of an example are the sum of the rows of its features.
    """
    count, classes = FEATURES_PER_ROOT * len(VOCAB), int(labels.max()) + 1
    weights, rng = np.zeros((count, classes)), np.random.default_rng(0)
    for progress in np.arange(PASSES) / PASSES:
        order = rng.permutation(len(labels))
        for start in range(0, len(labels), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            logits = weights[features[rows]].sum(axis=1)
            errors = np.exp(logits - logits.max(axis=1, keepdims=True))
            errors /= errors.sum(axis=1, keepdims=True)
            errors[np.arange(len(rows)), labels[rows]] -= 1
            errors = errors.repeat(features.shape[1], axis=0)
            gradient = [np.bincount(features[rows].ravel(), e, count) for e in errors.T]
            weights -= LEARNING_RATE * (1 - progress) * np.stack(gradient, axis=1) / len(rows)
    return weights
