"""Examples as files have them, tokenized splits, and their padded batches."""

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dataprep import cache
from language.tokenizer import Tokenizer, batches

IGNORED = -1  # label of tokens that do not begin a word

Batch = dict[str, npt.NDArray[Any]]
Truncation = Literal["head", "head_tail"]


class Example(NamedTuple):
    """One example of any task, as a file has it."""

    # One text or a pair, the words of a sentence, or a question and its context.
    texts: tuple[str, ...]
    # Name of the class, names of several labels, score, tag of each word, or `answering.Answers`; None if
    # the file has no labels.
    label: Any = None
    where: str = ""  # file and line, for messages
    id: str = ""  # as in a file of predictions; empty: its number in the split, from 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Tokens of all examples of a split, in rows; `batch` truncates and adds special tokens.

    A row is an example, a part of a long sentence, or a window over a long context.
    """

    tokens: npt.NDArray[np.integer]  # [total], memory mapped
    starts: npt.NDArray[np.int64]  # [N, 1], pairs [N, 2], offset of each text in `tokens`
    lengths: npt.NDArray[np.int64]  # [N, 1], pairs [N, 2], tokens per text
    labels: npt.NDArray[np.int32] | npt.NDArray[np.float32]  # [N, …], float32 for scores
    is_labeled: bool  # False if the file has no labels; those of `labels` are then zeros
    ids: npt.NDArray[np.str_]  # [N], as in a file of predictions
    tokenizer: Tokenizer
    truncation: Truncation = "head"
    owners: npt.NDArray[np.int64]  # [N], example of each row; sorted, except in a sample
    examples: Sequence[Example] = ()  # of tasks with several rows per example
    tags: npt.NDArray[np.int32] | None = None  # [total], labels of tokens
    spans: npt.NDArray[np.int32] | None = None  # [total, 2], start and end of tokens in characters

    def __len__(self) -> int:
        return len(self.starts)

    def count_complete(self, rows: int) -> int:
        """Returns how many examples have all their rows among the first `rows`.

        Raises:
          ValueError: No example is complete.
        """
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
          labels: [B, …], or [B, L] with `IGNORED` except at the first token of each word.
        """
        indices = np.asarray(indices)
        cache.require_rows(indices, len(self))
        lengths = self.lengths[indices]
        kept = truncated_lengths(lengths, max_len, self.num_special)
        positions = np.arange(max_len)
        inputs = np.full((len(indices), max_len), self.tokenizer.pad_id, np.int32)
        types = np.zeros_like(inputs)
        inputs[:, 0] = self.tokenizer.cls_id
        labels = self.labels[indices] if self.tags is None else np.full_like(inputs, IGNORED)
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
            if self.tags is not None:
                labels[inside] = self.tags[source[inside]]
            is_last = text + 1 == lengths.shape[1]
            end = room + (1 if is_last else self.tokenizer.pair_separators)
            inputs[(rank >= room) & (rank < end)] = self.tokenizer.sep_id
            if self.tokenizer.has_types:
                types[(rank >= 0) & (rank < end)] = text
            begin = begin + end
        return {"inputs": inputs, "mask": positions < begin, "types": types, "labels": labels}

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """Returns a split with these rows, in this order."""
        names = ("starts", "lengths", "labels", "ids", "owners")
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in names})


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
    assert room >= texts, f"max_len={max_len} is too small for one token of each text"
    if texts == 1:
        return np.minimum(lengths, room)
    first, second = lengths.T
    kept_first = np.minimum(first, np.maximum(room - second, (room + 1) // 2))
    kept_second = np.minimum(second, np.maximum(room - first, room // 2))
    return np.stack([kept_first, kept_second], axis=1)


def sample(split: Split, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Returns the rows of a random sample, stratified by label if the labels are classes.

    A larger sample with the same seed begins with the smaller one.
    """
    digests = (hashlib.sha256(b"%d %d" % (seed, row)).digest()[:8] for row in range(len(split)))
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    if split.labels.dtype != np.int32 or split.labels.ndim > 1:
        return order[:count]
    rank = np.empty(len(split))  # rank within the class, scaled to [0, 1] to mix classes
    for label in np.unique(split.labels):
        own = order[split.labels[order] == label]
        rank[own] = (np.arange(len(own)) + 0.5) / len(own)
    return np.lexsort((keys, rank))[:count]


def save_texts(
    folder: Path,
    split: str,
    texts: Sequence[str],
    tokenizer: Tokenizer,
    *,
    with_spans: bool = False,
) -> None:
    """Tokenizes texts and writes `<split>_tokens.npy`, `_offsets.npy`, and `_spans.npy` if `with_spans`."""
    tokens: list[npt.NDArray[np.integer]] = []
    spans: list[npt.NDArray[np.int32]] = []
    lengths: list[int] = []
    is_small = tokenizer.vocab_size <= 2**16 and not with_spans
    for call in batches(texts):
        if with_spans:
            pairs = tokenizer.encode_with_spans(call)
            ids = [own for own, _ in pairs]
            spans += [np.array(own, np.int32).reshape(-1, 2) for _, own in pairs]
        else:
            ids = tokenizer.encode(call)
        lengths += map(len, ids)
        flat = list(itertools.chain.from_iterable(ids))
        tokens.append(np.array(flat, np.uint16 if is_small else np.int32))
    arrays = {"tokens": np.concatenate(tokens), "offsets": np.cumsum([0, *lengths])}
    save_arrays(folder, split, arrays | ({"spans": np.concatenate(spans)} if with_spans else {}))


def save_arrays(folder: Path, split: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes each array to `<split>_<name>.npy`."""
    for name, array in arrays.items():
        cache.save_array(folder / f"{split}_{name}.npy", array)


def open_arrays(folder: Path, split: str, *names: str) -> list[npt.NDArray[Any]]:
    """Opens arrays written by `save_texts` and `save_arrays`."""
    return [cache.open_array(folder / f"{split}_{name}.npy") for name in names]
