"""Pairs of neighbouring texts, A and B, out of documents: the instances of BERT and ALBERT.

    [CLS] A [SEP] B [SEP]

A and B are whole sentences of one document and follow each other in it. They are stored in this
order: whether a pair is turned round, and which of its tokens are masked, is drawn in training.

Source: Devlin et al. 2019 (A.2) and Lan et al. 2020; google-research/bert, create_pretraining_data.py
at eedf571, and mlpen/Nystromformer, reorganized_code/BERT at 5689313.
Differs from them: no token is cut off. A sentence that does not fit begins the next pair.
"""

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from harness import cache
from language.tokenizer import Tokenizer

NUM_SPECIAL = 3  # [CLS] and two [SEP]
SPLITS = ("train", "valid")

_COUNTED_AT_ONCE = 2**24


class Pair(NamedTuple):
    """Token ids of two texts, without special tokens."""

    first: list[int]
    second: list[int]


class Draw(NamedTuple):
    """What is drawn for a document, from its text and the seed alone."""

    split: str
    rng: random.Random


def draw(document: str, seed: int, held_out: float) -> Draw:
    """Chooses the split of a document: `held_out` of all go to validation, equal ones together."""
    digest = hashlib.sha256(b"%d\n%b" % (seed, document.encode())).digest()
    is_valid = int.from_bytes(digest[:8]) < held_out * 2**64
    return Draw(SPLITS[is_valid], random.Random(digest[8:]))


def pack(
    sentences: Sequence[list[int]], max_tokens: int, short_rate: float, rng: random.Random
) -> Iterator[Pair]:
    """Packs the sentences of a document into pairs of at most `max_tokens` tokens, in order.

    Sentences are added while they fit. With probability `short_rate` a pair aims at fewer tokens,
    from 2 on, and is closed as soon as it has them. A pair is divided between any two of its
    sentences. All tokens are in one pair each, and no text is empty:

    * A sentence is cut where it alone would fill a pair, in the middle, and where it is the second
      and does not fit.
    * A last sentence that is left alone joins the pair before it if it fits there. Or else it takes
      the last sentence over from it if two stay, or half of it if that was the longer one; or else it
      is cut in the middle. One token alone, where none of this can be, is left out.

    Args:
      sentences: token ids of each; none is empty.
      max_tokens: at least 2.
      short_rate: between 0 and 1.
      rng: for the lengths, and for where pairs are divided.

    Yields:
      Nothing for fewer than two sentences.
    """
    if len(sentences) < 2:
        return
    waiting = list(reversed(sentences))
    packed: list[list[list[int]]] = []
    while waiting:
        target = max_tokens
        if rng.random() < short_rate:
            target = 2 + int(rng.random() * (max_tokens - 1))
        packed.append(_fill(waiting, max_tokens, target))
    if len(packed[-1]) == 1:
        _join_last(packed, max_tokens)
    for texts in packed:
        border = 1 + int(rng.random() * (len(texts) - 1))
        yield Pair(_joined(texts[:border]), _joined(texts[border:]))


def _joined(texts: Iterable[list[int]]) -> list[int]:
    return [token for text in texts for token in text]


def _fill(waiting: list[list[int]], max_tokens: int, target: int) -> list[list[int]]:
    """Takes the texts of a pair from the end of `waiting`: two or more while there are."""
    texts: list[list[int]] = []
    length = 0
    while waiting and (length < target or len(texts) < 2):
        text = waiting.pop()
        # What a first text may have at most leaves a token to the second.
        room = max_tokens - length - (not texts)
        if len(text) > room:
            if len(texts) >= 2:
                waiting.append(text)
                break
            cut = room if texts else max_tokens // 2
            waiting.append(text[cut:])
            text = text[:cut]
        texts.append(text)
        length += len(text)
    return texts


def _join_last(packed: list[list[list[int]]], max_tokens: int) -> None:
    """Gives the lone text of the last pair a neighbour; see `pack`."""
    [text] = packed.pop()
    before = packed[-1]
    neighbour = before[-1]
    half = len(neighbour) // 2
    if sum(map(len, before)) + len(text) <= max_tokens:
        before.append(text)
    elif len(before) > 2 and len(neighbour) + len(text) <= max_tokens:
        packed.append([before.pop(), text])
    elif len(text) < len(neighbour) and len(neighbour) - half + len(text) <= max_tokens:
        before[-1] = neighbour[:half]
        packed.append([neighbour[half:], text])
    elif len(text) > 1:
        packed.append([text[: len(text) // 2], text[len(text) // 2 :]])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a split; number i is `tokens[offsets[i]:offsets[i + 1]]`, A and then B.

    Args:
      tokens: [total], memory mapped.
      offsets: [N + 1].
      first_lens: [N], tokens of A.
      tokenizer: whose tokens they are.
    """

    tokens: npt.NDArray[np.unsignedinteger[Any]]
    offsets: npt.NDArray[np.int64]
    first_lens: npt.NDArray[np.int32]
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.first_lens)

    def __getitem__(self, index: int) -> Pair:
        self._require(np.array([index]))
        stored = self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()
        first_len = int(self.first_lens[index])
        return Pair(stored[:first_len], stored[first_len:])

    def batch(
        self, indices: npt.NDArray[np.integer[Any]], max_len: int
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Gathers the pairs `indices`.

        Returns:
          inputs: [B, max_len], `[CLS] A [SEP] B [SEP]` and padding.
          first_len: [B], tokens of A.
          second_len: [B], tokens of B.
          example: [B], the indices.

        Raises:
          ValueError: a pair is longer than `max_len`.
          IndexError: there is no such pair.
        """
        indices = np.asarray(indices)
        self._require(indices)
        starts = self.offsets[indices][:, None]
        first = self.first_lens[indices][:, None]
        both = (self.offsets[indices + 1] - self.offsets[indices])[:, None]
        if len(indices) and both.max() + NUM_SPECIAL > max_len:
            raise ValueError(
                f"A pair of {both.max()} tokens and {NUM_SPECIAL} special ones does not fit into rows"
                f" of {max_len}: ask for rows of data.max_len or more."
            )
        place = np.arange(max_len)[None, :]
        # [CLS] comes before A, and one [SEP] more before B; clipped where a row has no token to take.
        source = starts + place - 1 - (place > first)
        taken = self.tokens[np.clip(source, 0, max(len(self.tokens) - 1, 0))]
        inputs = np.where(place <= both + 1, taken.astype(np.int32), self.tokenizer.pad_id)
        inputs[:, :1] = self.tokenizer.cls_id
        inputs[(place == first + 1) | (place == both + 2)] = self.tokenizer.sep_id
        return {
            "inputs": inputs.astype(np.int32),
            "first_len": first[:, 0].astype(np.int32),
            "second_len": (both - first)[:, 0].astype(np.int32),
            "example": indices.astype(np.int32),
        }

    def token_counts(self) -> npt.NDArray[np.int64]:
        """[V], how often each token occurs in the pairs."""
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        total = int(self.offsets[len(self)])
        for start in range(0, total, _COUNTED_AT_ONCE):
            part = self.tokens[start : min(start + _COUNTED_AT_ONCE, total)]
            counts += np.bincount(part, minlength=len(counts))
        return counts

    def first(self, count: int) -> Self:
        """The first `count` pairs, or all where there are fewer."""
        return dataclasses.replace(
            self, offsets=self.offsets[: count + 1], first_lens=self.first_lens[:count]
        )

    @classmethod
    def open(cls, folder: Path, split: str, tokenizer: Tokenizer) -> Self:
        """Maps `<split>_tokens.npy`, `<split>_offsets.npy` and `<split>_first_lens.npy`."""
        tokens, offsets, first_lens = (
            cache.open_array(folder / f"{split}_{part}.npy")
            for part in ("tokens", "offsets", "first_lens")
        )
        return cls(tokens, offsets, first_lens, tokenizer)

    def _require(self, indices: npt.NDArray[np.integer[Any]]) -> None:
        if len(indices) and not (indices.min() >= 0 and indices.max() < len(self)):
            raise IndexError(
                f"A batch needs pairs 0 to {len(self) - 1} of this split; it got pairs"
                f" {indices.min()} to {indices.max()}."
            )
