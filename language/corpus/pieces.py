"""Prepares a corpus piece by piece: counts its words, and packs its sentences into pairs.

A piece of the source becomes a folder, whole or not at all, that depends on nothing but the piece; so
the data are the same for any number of processes, and a preparation that was stopped goes on from
the pieces that it had finished.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from harness import cache, parallel
from harness.whole_files import fsync
from language.corpus import sentences
from language.corpus.documents import Source
from language.corpus.pairs import NUM_SPECIAL, SPLITS, draw, pack
from language.tokenizer import Tokenizer, bert_words, load_tokenizer

MAX_WORDS = 500_000  # of the vocabulary that is learned: the most frequent ones

_ENCODED_AT_ONCE = 2**18  # characters
_COUNTS = "counts.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SplitStatistics:
    """What a split was made of.

    Args:
      documents: all that were drawn for it.
      left_out: documents of one sentence, or none, which give no pair.
      sentences: of the other documents.
      tokens: in pairs, without special tokens around them.
      unknown: of these, unknown tokens.
      pairs: instances.
    """

    documents: int = 0
    left_out: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown: int = 0
    pairs: int = 0

    @property
    def unknown_share(self) -> float:
        """Of all tokens."""
        return self.unknown / max(self.tokens, 1)


@dataclasses.dataclass(frozen=True)
class WordCounter:
    """Makes a piece of word counts, of the documents for training."""

    source: Source
    lowercase: bool
    held_out: float
    seed: int

    def __call__(self, piece: int, folder: Path) -> None:
        """Writes how many documents there are, and how often each of BERT's words occurs."""
        documents = 0
        raw: Counter[str] = Counter()
        words: Counter[str] = Counter()
        for document in self.source.read(piece):
            documents += 1
            if draw(document, self.seed, self.held_out).split == "train":
                raw.update(document.split())
            if len(raw) > MAX_WORDS:
                words += bert_words(raw, self.lowercase)
                raw.clear()
                if len(words) > 4 * MAX_WORDS:  # a compressed file is a piece of any size
                    words = Counter(_most_frequent(words, 2 * MAX_WORDS))
        words += bert_words(raw, self.lowercase)
        counts = {"documents": documents, "words": _most_frequent(words)}
        (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def read_words(pieces: Iterable[Path]) -> tuple[int, dict[str, int]]:
    """Adds up what `WordCounter` wrote: the number of documents, and the words for training."""
    documents = 0
    words: Counter[str] = Counter()
    for piece in pieces:
        counts = json.loads((piece / _COUNTS).read_text(encoding="utf-8"))
        documents += counts["documents"]
        words.update(counts["words"])
        if len(words) > 4 * MAX_WORDS:
            words = Counter(_most_frequent(words, 2 * MAX_WORDS))
    return documents, _most_frequent(words)


def _most_frequent(words: Mapping[str, int], count: int = MAX_WORDS) -> dict[str, int]:
    """Of equally frequent ones the first in the alphabet; so it does not matter how they come."""
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:count])


@dataclasses.dataclass(frozen=True)
class PairMaker:
    """Makes a piece of pairs.

    Args:
      source: the documents.
      tokenizer_file: a `tokenizer.json`.
      max_len: tokens of an instance, special ones included.
      short_rate: see `language.corpus.pairs.pack`.
      held_out: share of the documents for validation.
      seed: of the split and of everything that is drawn.
    """

    source: Source
    tokenizer_file: Path
    max_len: int
    short_rate: float
    held_out: float
    seed: int

    def __call__(self, piece: int, folder: Path) -> None:
        """Writes tokens, lengths and first lengths of each split as plain numbers, and counts."""
        if multiprocessing.parent_process():  # every core has a process of its own
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenizer = _loaded(self.tokenizer_file)
        counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        with contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context((folder / name).open("wb"))
                for split in SPLITS
                for name in (f"{split}_tokens", f"{split}_lengths", f"{split}_first_lens")
            }
            for documents in _batches(self.source.read(piece)):
                for split, count, columns in self._pairs_of(documents, tokenizer):
                    counts[split].update(count)
                    for name, values in columns.items():
                        files[f"{split}_{name}"].write(values.data)
        (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")

    def _pairs_of(
        self, documents: Sequence[str], tokenizer: Tokenizer
    ) -> Iterator[tuple[str, dict[str, int], dict[str, npt.NDArray[Any]]]]:
        """Yields split, counts and arrays of every document."""
        # In the middle of a text, a byte-level word begins with the space before it.
        space = " " if tokenizer.word_mark == "Ġ" else ""
        texts = [sentences.split(document) for document in documents]
        encoded = iter(
            tokenizer.encode([space * (i > 0) + s for text in texts for i, s in enumerate(text)])
        )
        dtype, unk_id = token_dtype(tokenizer), tokenizer.unk_id
        for document, text in zip(documents, texts, strict=True):
            ids = [found for found in (next(encoded) for _ in text) if found]
            split, rng = draw(document, self.seed, self.held_out)
            pairs = list(pack(ids, self.max_len - NUM_SPECIAL, self.short_rate, rng))
            tokens = np.array([id for pair in pairs for part in pair for id in part], dtype)
            first_lens = np.array([len(pair.first) for pair in pairs], np.int32)
            second_lens = np.array([len(pair.second) for pair in pairs], np.int32)
            count = {
                "documents": 1,
                "left_out": int(not pairs),
                "sentences": len(ids) if pairs else 0,
                "tokens": len(tokens),
                "unknown": 0 if unk_id is None else int(np.count_nonzero(tokens == unk_id)),
                "pairs": len(pairs),
            }
            lengths = first_lens + second_lens
            yield (
                split,
                count,
                {"tokens": tokens, "lengths": lengths, "first_lens": first_lens},
            )


def token_dtype(tokenizer: Tokenizer) -> npt.DTypeLike:
    """The smallest of two that holds every token."""
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


def read_statistics(pieces: Iterable[Path]) -> dict[str, SplitStatistics]:
    """Adds up the counts that `PairMaker` wrote."""
    totals: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for piece in pieces:
        for split, counts in json.loads((piece / _COUNTS).read_text(encoding="utf-8")).items():
            totals[split].update(counts)
    return {split: SplitStatistics(**counts) for split, counts in totals.items()}


def join(
    folder: Path, pieces: Sequence[Path], statistics: Mapping[str, SplitStatistics], tokens: Any
) -> None:
    """Writes the arrays that `language.corpus.pairs.Pairs` opens; `tokens` is their type."""
    for split, found in statistics.items():
        columns = (("tokens", found.tokens, tokens), ("first_lens", found.pairs, np.int32))
        for name, length, dtype in columns:
            with cache.array_file(folder / f"{split}_{name}.npy", (length,), dtype) as append:
                for piece in pieces:
                    append(_stored(piece / f"{split}_{name}", dtype))
        with cache.array_file(
            folder / f"{split}_offsets.npy", (found.pairs + 1,), np.int64
        ) as append:
            append(end := np.zeros(1, np.int64))
            for piece in pieces:
                lengths = _stored(piece / f"{split}_lengths", np.int32)
                append(ends := end + np.cumsum(lengths, dtype=np.int64))
                end = ends[-1:] if len(ends) else end


def finish(
    make: Callable[[int, Path], None], count: int, folder: Path, num_processes: int, title: str
) -> list[Path]:
    """Makes the pieces 0 to `count` - 1 that are not yet there, each in a folder of its own.

    Args:
      make: writes the files of a piece into the empty folder that it is given; picklable.
      count: pieces.
      folder: of all pieces; it is made where it is missing.
      num_processes: at work at the same time.
      title: of the progress bar.

    Returns:
      The folders, in order.
    """
    folder.mkdir(exist_ok=True)
    for partial in folder.glob("*.partial"):
        shutil.rmtree(partial)
    # The names say how the source is divided: pieces of another division are not taken for these.
    pieces = [folder / f"{piece:06d}-of-{count:06d}" for piece in range(count)]
    missing = [piece for piece, path in enumerate(pieces) if not path.exists()]
    if 0 < len(missing) < count:
        _logger.info(
            "Going on after %d of %d pieces that are finished", count - len(missing), count
        )
    if missing:
        once = _Once(make, pieces, missing)
        with contextlib.closing(
            parallel.in_order(once, min(num_processes, len(missing)))
        ) as finished:
            for _ in tqdm(missing, title, unit=" pieces", disable=None):
                next(finished)
    return pieces


@dataclasses.dataclass(frozen=True)
class _Once:
    """Makes the missing pieces, each whole or not at all."""

    make: Callable[[int, Path], None]
    pieces: Sequence[Path]
    missing: Sequence[int]

    def __call__(self, number: int) -> None:
        if number >= len(self.missing):  # they are asked for without end
            return
        piece = self.missing[number]
        final = self.pieces[piece]
        partial = final.with_name(f"{final.name}.{os.getpid()}.partial")
        partial.mkdir()
        self.make(piece, partial)
        for path in (*partial.iterdir(), partial):
            fsync(path)
        partial.rename(final)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path) -> Tokenizer:
    return load_tokenizer(path)


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    """Groups documents, so that a tokenizer has something to do."""
    batch: list[str] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document)
        if size >= _ENCODED_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _stored(path: Path, dtype: Any) -> npt.NDArray[Any]:
    """Maps plain numbers; an empty file cannot be mapped."""
    if not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))
