"""Prepares a corpus in pieces: counts words and packs sentences into pairs.

One process reads the documents, in order, and several split and tokenize them. The result of each piece,
about a megabyte of documents, is written atomically to its own folder. The data are therefore the same for
any number of processes, and an interrupted preparation resumes after the finished pieces.
"""

import contextlib
import dataclasses
import functools
import itertools
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

from dataprep import cache, parallel
from language.corpus import sentences
from language.corpus.pairs import NUM_SPECIAL, SPLITS, draw_split, pack
from language.tokenizer import Tokenizer, batches, bert_words, load_tokenizer
from nystromformer_jax.support.durable import sync

PIECE_CHARACTERS = 2**20  # the reading process holds two pieces for each other process
MAX_WORDS = 500_000  # the vocabulary is learned from the most frequent words, at most this many

_COUNTS = "counts.json"

_logger = logging.getLogger(__name__)
_load_tokenizer = functools.lru_cache(maxsize=1)(load_tokenizer)


@dataclasses.dataclass(frozen=True)
class SplitStatistics:
    """Counts of a split."""

    documents: int = 0
    left_out: int = 0  # documents with fewer than two sentences
    sentences: int = 0  # sentences of documents that are not left out
    tokens: int = 0  # tokens in the pairs, without special tokens
    unknown: int = 0  # unknown tokens in the pairs
    pairs: int = 0


@dataclasses.dataclass(frozen=True)
class WordCounter:
    """Counts words in the training documents of a piece."""

    lowercase: bool
    held_out: float
    seed: int

    def __call__(self, documents: Sequence[str], folder: Path) -> None:
        """Writes the number of documents, and the count of each word (BERT's pre-tokenization)."""
        raw: Counter[str] = Counter()
        for document in documents:
            if draw_split(document, self.seed, self.held_out)[0] == "train":
                raw.update(document.split())
        words = _most_frequent(bert_words(raw, self.lowercase))
        counts = {"documents": len(documents), "words": words}
        (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")


def read_words(pieces: Iterable[Path]) -> tuple[int, dict[str, int]]:
    """Returns the total counts of `WordCounter`: number of documents, and counts of training words."""
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
    """Returns the most frequent words; ties are in alphabetical order."""
    return dict(sorted(words.items(), key=lambda item: (-item[1], item[0]))[:count])


@dataclasses.dataclass(frozen=True)
class PairMaker:
    """Writes the pairs of a piece; see `CorpusConfig` for the options."""

    tokenizer_file: Path
    max_len: int
    short_rate: float
    held_out: float
    seed: int

    def __call__(self, documents: Sequence[str], folder: Path) -> None:
        """Writes the tokens, lengths and counts of each split."""
        if multiprocessing.parent_process():  # one process per core is enough
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        tokenizer = _load_tokenizer(self.tokenizer_file)
        counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
        with contextlib.ExitStack() as stack:
            files = {
                name: stack.enter_context((folder / name).open("wb"))
                for split in SPLITS
                for name in (f"{split}_tokens", f"{split}_lengths", f"{split}_first_lens")
            }
            for texts in batches(documents):
                for split, count, columns in self._pairs_of(texts, tokenizer):
                    counts[split].update(count)
                    for name, values in columns.items():
                        files[f"{split}_{name}"].write(values.data)
        (folder / _COUNTS).write_text(json.dumps(counts), encoding="utf-8")

    def _pairs_of(
        self, documents: Sequence[str], tokenizer: Tokenizer
    ) -> Iterator[tuple[str, dict[str, int], dict[str, npt.NDArray[Any]]]]:
        """Yields the split, the counts and the arrays of pairs of each document."""
        # In byte-level tokenizers a word includes the space before it, except at the start of a text.
        space = " " if tokenizer.word_mark == "Ġ" else ""
        texts = [sentences.split(document) for document in documents]
        encoded = iter(
            tokenizer.encode([space * (i > 0) + s for text in texts for i, s in enumerate(text)])
        )
        dtype, unk_id = token_dtype(tokenizer), tokenizer.unk_id
        for document, text in zip(documents, texts, strict=True):
            ids = [found for found in (next(encoded) for _ in text) if found]
            split, rng = draw_split(document, self.seed, self.held_out)
            pairs = list(pack(ids, self.max_len - NUM_SPECIAL, self.short_rate, rng))
            tokens = np.array([id for pair in pairs for part in pair for id in part], dtype)
            first_lens = np.array([len(pair.first) for pair in pairs], np.int32)
            count = {
                "documents": 1,
                "left_out": int(not pairs),
                "sentences": len(ids) if pairs else 0,
                "tokens": len(tokens),
                "unknown": 0 if unk_id is None else int(np.count_nonzero(tokens == unk_id)),
                "pairs": len(pairs),
            }
            lengths = np.array([len(first) + len(second) for first, second in pairs], np.int32)
            yield split, count, {"tokens": tokens, "lengths": lengths, "first_lens": first_lens}


def token_dtype(tokenizer: Tokenizer) -> npt.DTypeLike:
    """Returns the smallest dtype for token ids, uint16 or uint32."""
    return np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32


def read_statistics(pieces: Iterable[Path]) -> dict[str, SplitStatistics]:
    """Returns the total counts of `PairMaker` by split."""
    totals: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    for piece in pieces:
        for split, counts in json.loads((piece / _COUNTS).read_text(encoding="utf-8")).items():
            totals[split].update(counts)
    return {split: SplitStatistics(**counts) for split, counts in totals.items()}


def write_arrays(
    folder: Path, pieces: Sequence[Path], statistics: Mapping[str, SplitStatistics], dtype: Any
) -> None:
    """Writes the arrays for `language.corpus.pairs.Pairs`; `dtype` is the dtype of the tokens."""
    for split, found in statistics.items():
        columns = (("tokens", found.tokens, dtype), ("first_lens", found.pairs, np.int32))
        for name, length, kind in columns:
            with cache.array_file(folder / f"{split}_{name}.npy", (length,), kind) as append:
                for piece in pieces:
                    append(_map_file(piece / f"{split}_{name}", kind))
        offsets = folder / f"{split}_offsets.npy"
        with cache.array_file(offsets, (found.pairs + 1,), np.int64) as append:
            append(end := np.zeros(1, np.int64))
            for piece in pieces:
                lengths = _map_file(piece / f"{split}_lengths", np.int32)
                append(ends := end + np.cumsum(lengths, dtype=np.int64))
                end = ends[-1:] if len(ends) else end


def make_pieces(
    make: Callable[[Sequence[str], Path], None],
    documents: Iterable[str],
    folder: Path,
    workers: int,
    title: str,
) -> list[Path]:
    """Makes the missing pieces of `documents` in `folder`; returns the folders of all pieces.

    `make` writes the result of a piece to an empty folder and must be picklable. `title` is that of the
    progress bar.
    """
    folder.mkdir(exist_ok=True)
    for partial in folder.glob("*.partial"):
        shutil.rmtree(partial)
    pieces: list[Path] = []

    def missing() -> Iterator[tuple[Path, Sequence[str]]]:
        """Yields the folder and the documents of each missing piece; appends all folders to `pieces`."""
        for number, texts in enumerate(batches(documents, PIECE_CHARACTERS)):
            # The name contains the size, so that pieces of a different division are not reused.
            pieces.append(folder / f"{number:06d}-{PIECE_CHARACTERS}")
            if not pieces[-1].exists():
                yield pieces[-1], texts

    left = missing()
    first = list(itertools.islice(left, 2))
    if first and first[0][0] != pieces[0]:
        _logger.info("Resuming after %d finished pieces.", pieces.index(first[0][0]))
    processes = parallel.num_processes(workers) if len(first) > 1 else 1
    todo = itertools.chain(first, left)
    with contextlib.closing(
        parallel.in_order(functools.partial(_make_piece, make), todo, processes)
    ) as finished:
        for _ in tqdm(finished, title, unit=" pieces", disable=None):
            pass
    return pieces


def _make_piece(
    make: Callable[[Sequence[str], Path], None], piece: tuple[Path, Sequence[str]]
) -> None:
    """Makes a piece atomically in its folder, from its documents."""
    final, documents = piece
    partial = final.with_name(f"{final.name}.{os.getpid()}.partial")
    partial.mkdir()
    make(documents, partial)
    for path in (*partial.iterdir(), partial):
        sync(path)
    partial.rename(final)


def _map_file(path: Path, dtype: Any) -> npt.NDArray[Any]:
    """Memory-maps a binary file of numbers."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r"))
