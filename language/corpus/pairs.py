"""Pairs of consecutive texts of a document, A and B, the training examples of BERT and ALBERT.

    [CLS] A [SEP] B [SEP]

A and B consist of complete sentences, and B follows A. They are stored in this order, because training swaps
and masks them at random.

Source: Devlin et al. 2019 (A.2) and Lan et al. 2020; google-research/bert, create_pretraining_data.py
at eedf571, and mlpen/Nystromformer, reorganized_code/BERT at 5689313.
Differs from them: tokens are not dropped; a sentence that does not fit begins the next pair.
"""

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dataprep import cache
from language.tokenizer import Tokenizer

NUM_SPECIAL = 3  # [CLS] and two [SEP]
SPLITS = ("train", "valid")

_TOKENS_PER_COUNT = 2**24


class Pair(NamedTuple):
    """Token ids of two texts, without special tokens."""

    first: list[int]
    second: list[int]


def draw_split(document: str, seed: int, held_out: float) -> tuple[str, random.Random]:
    """Returns the split of a document ("valid" with probability `held_out`), and an RNG for the pairs.

    Both depend only on the text of the document and `seed`.
    """
    digest = hashlib.sha256(b"%d\n%b" % (seed, document.encode())).digest()
    is_valid = int.from_bytes(digest[:8]) < held_out * 2**64
    return SPLITS[is_valid], random.Random(digest[8:])


def pack(
    sentences: Sequence[list[int]], max_tokens: int, short_rate: float, rng: random.Random
) -> Iterator[Pair]:
    """Yields pairs of at most `max_tokens` tokens, packed from the sentences of a document in order.

    Sentences are added while they fit. With probability `short_rate` a pair has a smaller target length,
    at least 2, and ends when the target is reached. A pair is divided into A and B at a random boundary
    between sentences. Every token is in exactly one pair, except as in rule 4, and no text is empty:

    * A sentence that alone would fill a pair is split after `max_tokens // 2` tokens. The second sentence
      of a pair is split where the pair is full.
    * A single sentence may remain at the end. The first rule that leaves no pair over `max_tokens` applies:
      1. It is added to the previous pair.
      2. It forms a pair with the last sentence of the previous pair, if that pair keeps two sentences.
      3. It forms a pair with the second half of that last sentence, if that sentence is the longer one.
      4. It is split in the middle, or dropped if it is one token.

    Fewer than two sentences give no pair. Sentences must not be empty, and `max_tokens` is at least 2.
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
        first, second = (
            list(itertools.chain.from_iterable(part)) for part in (texts[:border], texts[border:])
        )
        yield Pair(first, second)


def _fill(waiting: list[list[int]], max_tokens: int, target: int) -> list[list[int]]:
    """Removes and returns the texts of a pair from the end of `waiting`, at least two if possible."""
    texts: list[list[int]] = []
    length = 0
    while waiting and (length < target or len(texts) < 2):
        text = waiting.pop()
        # The first text must leave room for one token of the second.
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
    """Handles a last pair that has only one text; see `pack`."""
    [text] = packed.pop()
    before = packed[-1]
    neighbor = before[-1]
    half = len(neighbor) // 2
    if sum(map(len, before)) + len(text) <= max_tokens:
        before.append(text)
    elif len(before) > 2 and len(neighbor) + len(text) <= max_tokens:
        packed.append([before.pop(), text])
    elif len(text) < len(neighbor) and len(neighbor) - half + len(text) <= max_tokens:
        before[-1] = neighbor[:half]
        packed.append([neighbor[half:], text])
    elif len(text) > 1:
        packed.append([text[: len(text) // 2], text[len(text) // 2 :]])


@dataclasses.dataclass(frozen=True)
class Pairs:
    """The pairs of a split; pair i is `tokens[offsets[i]:offsets[i + 1]]`, A followed by B."""

    tokens: npt.NDArray[np.unsignedinteger[Any]]  # [total], memory mapped
    offsets: npt.NDArray[np.int64]  # [N + 1]
    first_lens: npt.NDArray[np.int32]  # [N], tokens of A
    tokenizer: Tokenizer

    def __len__(self) -> int:
        return len(self.first_lens)

    def __getitem__(self, index: int) -> Pair:
        cache.require_rows(np.array([index]), len(self))
        stored = self.tokens[self.offsets[index] : self.offsets[index + 1]].tolist()
        first_len = int(self.first_lens[index])
        return Pair(stored[:first_len], stored[first_len:])

    def batch(
        self, indices: npt.NDArray[np.integer[Any]], max_len: int
    ) -> dict[str, npt.NDArray[np.int32]]:
        """Returns the batch of pairs `indices`.

        Returns:
          inputs: [B, max_len], `[CLS] A [SEP] B [SEP]` and padding.
          first_len, second_len: [B], number of tokens of A and B.
          example: [B], the indices.
        """
        indices = np.asarray(indices)
        cache.require_rows(indices, len(self))
        starts = self.offsets[indices][:, None]
        first = self.first_lens[indices][:, None]
        both = (self.offsets[indices + 1] - self.offsets[indices])[:, None]
        if len(indices) and both.max() + NUM_SPECIAL > max_len:
            raise ValueError(
                f"A pair has {both.max()} tokens and {NUM_SPECIAL} special tokens, which is more than"
                f" max_len={max_len}: pass max_len={both.max() + NUM_SPECIAL} or more."
            )
        place = np.arange(max_len)[None, :]
        # [CLS] precedes A and [SEP] precedes B. The index is clipped, because rows end in padding.
        source = starts + place - 1 - (place > first)
        taken = self.tokens[np.clip(source, 0, len(self.tokens) - 1)]
        inputs = np.where(place <= both + 1, taken.astype(np.int32), self.tokenizer.pad_id)
        inputs[:, 0] = self.tokenizer.cls_id
        inputs[(place == first + 1) | (place == both + 2)] = self.tokenizer.sep_id
        return {
            "inputs": inputs,
            "first_len": first[:, 0].astype(np.int32),
            "second_len": (both - first)[:, 0].astype(np.int32),
            "example": indices.astype(np.int32),
        }

    def token_counts(self) -> npt.NDArray[np.int64]:
        """Returns the count of each token in the pairs, [V]."""
        counts = np.zeros(self.tokenizer.vocab_size, np.int64)
        total = int(self.offsets[len(self)])
        for start in range(0, total, _TOKENS_PER_COUNT):
            part = self.tokens[start : min(start + _TOKENS_PER_COUNT, total)]
            counts += np.bincount(part, minlength=len(counts))
        return counts

    def first(self, count: int) -> Self:
        """Returns the first `count` pairs, or all pairs if there are fewer."""
        return dataclasses.replace(
            self, offsets=self.offsets[: count + 1], first_lens=self.first_lens[:count]
        )

    @classmethod
    def open(cls, folder: Path, split: str, tokenizer: Tokenizer) -> Self:
        """Memory-maps `<split>_tokens.npy`, `<split>_offsets.npy` and `<split>_first_lens.npy`."""
        tokens, offsets, first_lens = (
            cache.open_array(folder / f"{split}_{part}.npy")
            for part in ("tokens", "offsets", "first_lens")
        )
        return cls(tokens, offsets, first_lens, tokenizer)
