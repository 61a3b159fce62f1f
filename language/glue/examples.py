"""Tokenised splits, gathered into padded batches."""

import dataclasses
import hashlib
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from harness import cache
from language.glue.tables import Example

PIECE = 4096  # texts that are encoded at a time

Batch = dict[str, npt.NDArray[Any]]
Truncation = Literal["head", "head_tail"]


class Tokenizer(Protocol):
    """What is needed of a tokenizer; `sha256` changes when any encoding does."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""
        ...

    @property
    def pad_id(self) -> int:
        """Fills rows."""
        ...

    @property
    def cls_id(self) -> int:
        """Stands first."""
        ...

    @property
    def sep_id(self) -> int:
        """Ends every text."""
        ...

    @property
    def sha256(self) -> str:
        """Of all that encodings depend on."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, no special ones around them."""
        ...


class Specials(NamedTuple):
    """The ids that frame texts and fill rows."""

    pad: int
    cls: int
    sep: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedSplit:
    """A split's examples as tokens, whole; a batch cuts and frames them.

    Args:
      tokens: [total], memory mapped.
      starts: [N, 1], or for pairs [N, 2]: where in `tokens` each text begins.
      lengths: as `starts`: how many tokens it has.
      labels: [N], int32 or, for scores, float32; None where the files have none.
      label_dtype: theirs, also where there are none.
      ids: [N], what a submission calls the examples.
      specials: the frame.
      truncation: see `GlueConfig`.
    """

    tokens: npt.NDArray[np.integer]
    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int32] | npt.NDArray[np.float32] | None
    label_dtype: npt.DTypeLike
    ids: npt.NDArray[np.str_]
    specials: Specials
    truncation: Truncation = "head"

    def __len__(self) -> int:
        return len(self.starts)

    def batch(self, indices: npt.NDArray[np.integer], max_len: int) -> Batch:
        """Gathers the examples `indices`: `[CLS] a [SEP]`, for pairs `[CLS] a [SEP] b [SEP]`.

        Returns:
          inputs: int32 [B, L], L = `max_len`.
          mask: bool [B, L], True at real tokens.
          types: int32 [B, L], 1 at the second text and the [SEP] behind it, else 0.
          labels: [B]; zeros where the split has none.
        """
        indices = self._require_rows(np.asarray(indices))
        lengths = self.lengths[indices]
        kept = keep(lengths, max_len)
        places = np.arange(max_len)
        inputs = np.full((len(indices), max_len), self.specials.pad, np.int32)
        types = np.zeros_like(inputs)
        inputs[:, 0] = self.specials.cls
        begin = np.ones((len(indices), 1), np.int64)  # of the text in its row
        for text in range(lengths.shape[1]):
            length, room = lengths[:, text, None], kept[:, text, None]
            number = places - begin  # of the token in what is kept of its text
            from_head = room // 4 if self.truncation == "head_tail" else room
            skipped = np.where(number < from_head, 0, length - room)
            source = self.starts[indices, text, None] + number + skipped
            inside = (number >= 0) & (number < room)
            inputs[inside] = self.tokens[source[inside]]
            inputs[number == room] = self.specials.sep
            types[(number >= 0) & (number <= room)] = text
            begin = begin + room + 1
        own = self.labels
        labels = np.zeros(len(indices), self.label_dtype) if own is None else own[indices]
        return {"inputs": inputs, "mask": places < begin, "types": types, "labels": labels}

    def take(self, rows: npt.NDArray[np.integer]) -> Self:
        """These rows alone, in this order."""
        return dataclasses.replace(
            self,
            starts=self.starts[rows],
            lengths=self.lengths[rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=self.ids[rows],
        )

    def _require_rows(self, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(
                f"A batch needs rows 0 to {len(self) - 1} of this split; it got rows"
                f" {indices.min()} to {indices.max()}."
            )
        return indices


def keep(lengths: npt.NDArray[np.int64], max_len: int) -> npt.NDArray[np.int64]:
    """How many tokens of each text fit into `max_len` together with the special ones.

    Of a pair the longer text loses a token until both fit; of two equal ones the second does.

    Source: google-research/bert, run_classifier.py at eedf571, _truncate_seq_pair; here in one step. The
    library `tokenizers` gives the odd token of two texts that are both too long to the longer one.

    Args:
      lengths: [B, 1], or for pairs [B, 2].
      max_len: tokens of a row.
    """
    texts = lengths.shape[1]
    room = max_len - 1 - texts
    if room < texts:
        raise ValueError(
            f"Rows of {max_len} tokens have no room for a token of each text and the special ones:"
            f" pass max_len={2 * texts + 1} or more."
        )
    if texts == 1:
        return np.minimum(lengths, room)
    first, second = lengths.T
    kept_first = np.minimum(first, np.maximum(room - second, (room + 1) // 2))
    kept_second = np.minimum(second, np.maximum(room - first, room // 2))
    return np.stack([kept_first, kept_second], axis=1)


def sample(split: EncodedSplit, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Rows of a random sample that has the split's shares of labels, as nearly as `count` allows.

    A larger sample of the same seed begins with the smaller one.
    """
    numbers = range(len(split))
    digests = (hashlib.sha256(b"%d %d" % (seed, row)).digest()[:8] for row in numbers)
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    if split.labels is None or split.labels.dtype != np.int32:
        return order[:count]
    place = np.empty(len(split))  # in its class, from 0 to 1: the classes take turns by it
    for label in np.unique(split.labels):
        own = order[split.labels[order] == label]
        place[own] = (np.arange(len(own)) + 0.5) / len(own)
    return np.lexsort((keys, place))[:count]


def save(
    folder: Path,
    split: str,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    label_dtype: npt.DTypeLike,
    threads: int,
) -> None:
    """Encodes a split and writes `<split>_tokens.npy`, `_offsets`, `_ids` and, if it has any, `_labels`."""
    texts = list(itertools.chain.from_iterable(example.texts for example in examples))
    pieces = [texts[start : start + PIECE] for start in range(0, len(texts), PIECE)]
    with ThreadPoolExecutor(threads) as pool:
        encoded = list(pool.map(lambda piece: _encode(tokenizer, piece), pieces))
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(np.concatenate([lengths for _, lengths in encoded]), out=offsets[1:])
    arrays = {
        "tokens": np.concatenate([tokens for tokens, _ in encoded]),
        "offsets": offsets,
        "ids": np.array([example.id for example in examples]),
    }
    if examples[0].label is not None:
        arrays["labels"] = np.array([example.label for example in examples], label_dtype)
    for name, array in arrays.items():
        cache.save_array(folder / f"{split}_{name}.npy", array)


def open_split(
    folder: Path,
    split: str,
    texts: int,
    specials: Specials,
    *,
    truncation: Truncation,
    label_dtype: npt.DTypeLike,
) -> EncodedSplit:
    """Opens what `save` wrote of examples with so many texts."""
    offsets = cache.open_array(folder / f"{split}_offsets.npy")
    labels = folder / f"{split}_labels.npy"
    return EncodedSplit(
        tokens=cache.open_array(folder / f"{split}_tokens.npy"),
        starts=offsets[:-1].reshape(-1, texts),
        lengths=np.diff(offsets).reshape(-1, texts),
        labels=cache.open_array(labels) if labels.exists() else None,
        label_dtype=label_dtype,
        ids=cache.open_array(folder / f"{split}_ids.npy"),
        specials=specials,
        truncation=truncation,
    )


def _encode(
    tokenizer: Tokenizer, texts: Sequence[str]
) -> tuple[npt.NDArray[np.integer], npt.NDArray[np.int64]]:
    """The tokens of all texts, and how many each has."""
    ids = tokenizer.encode(texts)
    if len(ids) != len(texts):
        raise ValueError(f"The tokenizer gave {len(ids)} encodings of {len(texts)} texts.")
    tokens = np.array(list(itertools.chain.from_iterable(ids)), np.int64)
    if len(tokens) and not (tokens.min() >= 0 and tokens.max() < tokenizer.vocab_size):
        raise ValueError(
            f"The tokenizer gave ids from {tokens.min()} to {tokens.max()}, and its vocab_size is"
            f" {tokenizer.vocab_size}: is it the vocabulary's number of tokens?"
        )
    lengths = np.array([len(own) for own in ids], np.int64)
    return tokens.astype(np.uint16 if tokenizer.vocab_size <= 2**16 else np.int32), lengths
