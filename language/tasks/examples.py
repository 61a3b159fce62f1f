"""Tokenized splits, and their padded batches."""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dataprep import cache
from language.tokenizer import Tokenizer

TEXTS_PER_CALL = 4096  # texts that are encoded in one call

Batch = dict[str, npt.NDArray[Any]]
Truncation = Literal["head", "head_tail"]


class Example(NamedTuple):
    """One example of a sequence task."""

    id: str  # as in a file of predictions
    texts: tuple[str, ...]  # one text, or two for a pair, stripped
    # Class number, score, or a 0 or 1 for each of several labels; None if the file has no labels.
    label: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedSplit:
    """Tokens of all examples of a split; `batch` truncates and adds special tokens."""

    tokens: npt.NDArray[np.integer]  # [total], memory mapped
    starts: npt.NDArray[np.int64]  # [N, 1], pairs [N, 2], offset of each text in `tokens`
    lengths: npt.NDArray[np.int64]  # [N, 1], pairs [N, 2], tokens per text
    labels: npt.NDArray[np.int32] | npt.NDArray[np.float32] | None  # [N, …], float32 for scores
    label_dtype: npt.DTypeLike  # dtype of a batch's labels, even if `labels` is None
    label_shape: tuple[int, ...] = ()  # shape of the label of one row, even if `labels` is None
    ids: npt.NDArray[np.str_]  # [N], as in a file of predictions
    tokenizer: Tokenizer
    truncation: Truncation = "head"
    # [N], index of the example of each row, sorted except in a sample; None: each example has one row.
    owners: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def is_labeled(self) -> bool:
        """Returns True if the split has labels, so that predictions can be scored."""
        return self.labels is not None

    def count_complete(self, rows: int) -> int:
        """Returns how many examples have all their rows among the first `rows`.

        Raises:
          ValueError: No example is complete.
        """
        if self.owners is None:
            return rows
        count = int(self.owners[rows] if rows < len(self) else self.owners[-1] + 1)
        if not count:
            raise ValueError(
                f"eval.max_examples={rows}: the first example is longer than data.max_len and is split into"
                " more rows: raise eval.max_examples, or set it to 0 for all."
            )
        return count

    @property
    def num_special(self) -> int:
        """Number of special tokens of a row."""
        return 2 if self.lengths.shape[1] == 1 else 2 + self.tokenizer.pair_separators

    def padded_lengths(self, max_len: int) -> npt.NDArray[np.int64]:
        """Returns the number of tokens of each row of a batch, with special tokens; at most `max_len`."""
        return np.minimum(self.lengths.sum(axis=1) + self.num_special, max_len)

    def batch(self, indices: npt.NDArray[np.integer], max_len: int) -> Batch:
        """Returns the batch of examples `indices`: `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

        RoBERTa's tokenizers have two separators between the texts of a pair.

        Returns:
          inputs: int32 [B, L], L = `max_len`.
          mask: bool [B, L], True at real tokens.
          types: int32 [B, L], 1 at the second text and the final [SEP], else 0.
          labels: [B, …]; zeros if the split has none.
        """
        indices = np.asarray(indices)
        cache.require_rows(indices, len(self))
        lengths = self.lengths[indices]
        kept = truncated_lengths(lengths, max_len, self.num_special)
        positions = np.arange(max_len)
        inputs = np.full((len(indices), max_len), self.tokenizer.pad_id, np.int32)
        types = np.zeros_like(inputs)
        inputs[:, 0] = self.tokenizer.cls_id
        begin = np.ones((len(indices), 1), np.int64)  # position of the text in its row
        for text in range(lengths.shape[1]):
            length, room = lengths[:, text, None], kept[:, text, None]
            rank = positions - begin  # index among the kept tokens of the text
            from_head = room if self.tokenizer.truncation_side == "right" else 0
            if self.truncation == "head_tail":
                from_head = room // 4
            skipped = np.where(rank < from_head, 0, length - room)
            source = self.starts[indices, text, None] + rank + skipped
            inside = (rank >= 0) & (rank < room)
            inputs[inside] = self.tokens[source[inside]]
            is_last = text + 1 == lengths.shape[1]
            end = room + (1 if is_last else self.tokenizer.pair_separators)
            inputs[(rank >= room) & (rank < end)] = self.tokenizer.sep_id
            if self.tokenizer.has_types:
                types[(rank >= 0) & (rank < end)] = text
            begin = begin + end
        no_labels = np.zeros((len(indices), *self.label_shape), self.label_dtype)
        labels = no_labels if self.labels is None else self.labels[indices]
        return {"inputs": inputs, "mask": positions < begin, "types": types, "labels": labels}

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Returns a split with these rows, in this order."""
        return dataclasses.replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=self.ids[rows],
            owners=None if self.owners is None else self.owners[rows],
        )


def truncated_lengths(
    lengths: npt.NDArray[np.int64], max_len: int, num_special: int
) -> npt.NDArray[np.int64]:
    """Returns the number of tokens to keep of each text, so that all fit `max_len` with `num_special` more.

    The longer text of a pair loses tokens until both fit. If both are equally long, the second loses a
    token first. `lengths` is [B, 1], or [B, 2] for pairs.

    Source: google-research/bert, run_classifier.py at eedf571, _truncate_seq_pair; here in one step.
    Differs from the library `tokenizers`: if both texts are too long and the room is odd, the library gives
    the extra token to the longer text; this function gives it to the first.
    """
    texts = lengths.shape[1]
    room = max_len - num_special
    if room < texts:
        raise ValueError(
            f"max_len={max_len} is too small for the special tokens and one token of each text: pass"
            f" {num_special + texts} or more."
        )
    if texts == 1:
        return np.minimum(lengths, room)
    first, second = lengths.T
    kept_first = np.minimum(first, np.maximum(room - second, (room + 1) // 2))
    kept_second = np.minimum(second, np.maximum(room - first, room // 2))
    return np.stack([kept_first, kept_second], axis=1)


def sample(split: EncodedSplit, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Returns the rows of a random sample, stratified by label if the labels are classes.

    A larger sample with the same seed begins with the smaller one.
    """
    digests = (hashlib.sha256(b"%d %d" % (seed, row)).digest()[:8] for row in range(len(split)))
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    if split.labels is None or split.labels.dtype != np.int32 or split.labels.ndim > 1:
        return order[:count]
    rank = np.empty(len(split))  # rank within the class, scaled to [0, 1] to mix classes
    for label in np.unique(split.labels):
        own = order[split.labels[order] == label]
        rank[own] = (np.arange(len(own)) + 0.5) / len(own)
    return np.lexsort((keys, rank))[:count]


def save(
    folder: Path,
    split: str,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    label_dtype: npt.DTypeLike,
) -> None:
    """Tokenizes a split and writes `<split>_tokens.npy`, `_offsets`, `_ids` and, with labels, `_labels`."""
    texts = list(itertools.chain.from_iterable(example.texts for example in examples))
    calls = [texts[i : i + TEXTS_PER_CALL] for i in range(0, len(texts), TEXTS_PER_CALL)]
    encoded = [_encode(tokenizer, call) for call in calls]
    arrays = {
        "tokens": np.concatenate([tokens for tokens, _ in encoded]),
        "offsets": np.cumsum(np.concatenate([[0], *(lengths for _, lengths in encoded)])),
        "ids": np.array([example.id for example in examples]),
    }
    if examples[0].label is not None:
        arrays["labels"] = np.array([example.label for example in examples], label_dtype)
    save_arrays(folder, split, arrays)


def save_arrays(folder: Path, split: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes each array to `<split>_<name>.npy`."""
    for name, array in arrays.items():
        cache.save_array(folder / f"{split}_{name}.npy", array)


def open_arrays(folder: Path, split: str, *names: str) -> list[npt.NDArray[Any]]:
    """Opens arrays written by `save_arrays`."""
    return [cache.open_array(folder / f"{split}_{name}.npy") for name in names]


def open_split(
    folder: Path,
    split: str,
    texts: int,
    tokenizer: Tokenizer,
    truncation: Truncation,
    label_dtype: npt.DTypeLike,
    label_shape: tuple[int, ...] = (),
) -> EncodedSplit:
    """Opens a split written by `save`; each example has `texts` texts."""
    offsets = cache.open_array(folder / f"{split}_offsets.npy")
    labels = folder / f"{split}_labels.npy"
    return EncodedSplit(
        tokens=cache.open_array(folder / f"{split}_tokens.npy"),
        starts=offsets[:-1].reshape(-1, texts),
        lengths=np.diff(offsets).reshape(-1, texts),
        labels=cache.open_array(labels) if labels.exists() else None,
        label_dtype=label_dtype,
        label_shape=label_shape,
        ids=cache.open_array(folder / f"{split}_ids.npy"),
        tokenizer=tokenizer,
        truncation=truncation,
    )


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]:
    """Returns the concatenated tokens of all texts, and the number of tokens of each text."""
    ids = tokenizer.encode(texts)
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32
    tokens: npt.NDArray[Any] = np.array(list(itertools.chain.from_iterable(ids)), dtype)
    return tokens, np.array([len(own) for own in ids], np.int64)
