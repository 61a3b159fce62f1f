"""Prepares a corpus for pretraining: converts documents to pairs of texts.

A corpus is a text file, a folder of text files, JSON lines, or a dataset of tensorflow-datasets. It is split
into sentences by rules. The tokenizer is loaded, or trained on the training documents. The pairs are written
once to a cache folder, which all processes open.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from dataprep import cache
from language.corpus import pieces
from language.corpus.documents import Source, open_source
from language.corpus.pairs import NUM_SPECIAL, SPLITS, Pairs
from language.corpus.pieces import PairMaker, SplitStatistics, WordCounter
from language.tokenizer import FILE as TOKENIZER_FILE
from language.tokenizer import Tokenizer, load_tokenizer, train_tokenizer

# Part of every fingerprint. Increase it when the same files give different data.
FORMAT = 2

_STATISTICS = "statistics.json"
_VOCABULARY = "vocabulary.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """The section "data" of a config.

    Args:
      dir: A file, or a folder that is searched recursively.
      source: Format. "text"; "jsonl": one JSON object per line, with a document as `text`, in files
        .jsonl or .json, also with .gz; "tfds": folder of a dataset prepared by tensorflow-datasets;
        "auto": inferred from the file names.
      documents: Separator of documents. "blank_line": empty lines. "heading": lines like
        `= Title =`, as in WikiText; lines like `= = Section = =` are dropped. "file": one document per
        file. "line": one document per line, as always for JSON and tfds. "auto": headings if the text
        begins with a heading, else blank lines if the first mebibyte of the first file has any, else files if
        there are several, else lines.
      tokenizer: Path for `language.tokenizer.load_tokenizer`; empty: a tokenizer is trained.
      vocab_size: Vocabulary size of a trained tokenizer.
      lowercase: Convert text to lower case, for a trained tokenizer or a `vocab.txt`.
      max_len: Tokens per pair, including special tokens.
      short_rate: Fraction of pairs with a smaller target length.
      held_out: Fraction of documents for validation, selected by a hash of the document and the seed.
      examples: Maximum number of training pairs; the first ones are used. 0: all.
      seed: Seed of the split and of the pairs; training uses `train.seed`.
      workers: Number of processes that prepare the data; 0: one per core. It does not change the data.
    """

    dir: str
    source: Literal["auto", "text", "jsonl", "tfds"] = "auto"
    documents: Literal["auto", "blank_line", "heading", "file", "line"] = "auto"
    tokenizer: str = ""
    vocab_size: int = 30_000
    lowercase: bool = True
    max_len: int = 512
    short_rate: float = 0.1
    held_out: float = 0.01
    examples: int = 0
    seed: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        least = NUM_SPECIAL + 2
        for name, is_valid, needs in (
            (
                "max_len",
                self.max_len >= least,
                f"{least} tokens or more, for [CLS] a [SEP] b [SEP]",
            ),
            ("short_rate", 0 <= self.short_rate <= 1, "a share from 0 to 1"),
            ("held_out", 0 < self.held_out < 1, "a share between 0 and 1 (both splits are used)"),
            ("vocab_size", 0 < self.vocab_size <= 1_000_000, "1 to 1,000,000 tokens"),
            ("examples", self.examples >= 0, "0 for all, or a positive number"),
            ("workers", self.workers >= 0, "0 for one per core, or a positive number"),
        ):
            if not is_valid:
                raise ValueError(f"data.{name}: needs {needs}, got {getattr(self, name)}.")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A prepared corpus."""

    tokenizer: Tokenizer
    splits: Mapping[str, Pairs]  # "train" and "valid"
    sha256: str  # hash of the pairs, the vocabulary and the statistics
    statistics: Mapping[str, SplitStatistics]  # of each split before `examples` is applied
    folder: Path


def load(config: CorpusConfig) -> Corpus:
    """Returns a prepared corpus; prepares it on first use. An interrupted preparation resumes.

    Raises:
      FileNotFoundError: The corpus or the tokenizer is missing.
      ValueError: A file is invalid, a split has no pairs, or the vocabulary is too small.
      OSError: A file cannot be read, or the cache cannot be written.
    """
    source = open_source(config.dir, config.source, config.documents)
    if config.tokenizer:
        tokenizer = load_tokenizer(config.tokenizer, lowercase=config.lowercase)
    else:
        tokenizer = _train_tokenizer(config, source)
    stamp = source.stamp()
    names = ("max_len", "short_rate", "held_out", "seed")
    options: dict[str, Any] = {name: getattr(config, name) for name in names}
    fingerprint = {
        "data": "pairs",
        "format": FORMAT,
        "source": stamp,
        "tokenizer": tokenizer.sha256,
        **options,
    }

    def build(folder: Path) -> None:
        pieces_folder = cache.pieces_of(cache.folder_of("corpus", fingerprint))
        tokenizer.save(pieces_folder / "tokenizer")
        file = pieces_folder / "tokenizer" / TOKENIZER_FILE
        make = PairMaker(file, **options)
        documents = source.documents()
        made = pieces.make_pieces(make, documents, pieces_folder, config.workers, "Pairs")
        statistics = pieces.read_statistics(made)
        _require_pairs(statistics, config, str(stamp["documents"]))
        pieces.write_arrays(folder, made, statistics, pieces.token_dtype(tokenizer))
        plain = {split: dataclasses.asdict(found) for split, found in statistics.items()}
        (folder / _STATISTICS).write_text(json.dumps(plain, indent=2), encoding="utf-8")
        # A tokenizer.json would depend on the version of the library.
        (folder / _VOCABULARY).write_text(json.dumps(tokenizer.vocabulary), encoding="utf-8")
        left_out = sum(split.left_out for split in statistics.values())
        if left_out:
            _logger.info(
                "%s of %s documents have fewer than two sentences, so they give no pairs.",
                f"{left_out:,}",
                f"{sum(split.documents for split in statistics.values()):,}",
            )

    prepared = cache.prepared(
        "corpus", fingerprint, build, f"the corpus {config.dir}, documents by {stamp['documents']}"
    )
    splits = {split: Pairs.open(prepared.folder, split, tokenizer) for split in SPLITS}
    if config.examples:
        splits["train"] = splits["train"].first(config.examples)
    statistics = json.loads((prepared.folder / _STATISTICS).read_text(encoding="utf-8"))
    return Corpus(
        tokenizer=tokenizer,
        splits=splits,
        sha256=prepared.sha256,
        statistics={split: SplitStatistics(**counts) for split, counts in statistics.items()},
        folder=prepared.folder,
    )


def _train_tokenizer(config: CorpusConfig, source: Source) -> Tokenizer:
    """Returns the trained tokenizer of a corpus; trains it on first use."""
    stamp = source.stamp()
    fingerprint = {
        "data": "tokenizer",
        "format": FORMAT,
        "source": stamp,
        "vocab_size": config.vocab_size,
        "lowercase": config.lowercase,
        "held_out": config.held_out,
        "seed": config.seed,
    }

    def build(folder: Path) -> None:
        pieces_folder = cache.pieces_of(cache.folder_of("tokenizer", fingerprint))
        make = WordCounter(config.lowercase, config.held_out, config.seed)
        documents = source.documents()
        made = pieces.make_pieces(make, documents, pieces_folder, config.workers, "Words")
        count, words = pieces.read_words(made)
        if not count:
            raise _no_text(config)
        if not words:
            raise ValueError(
                f"{config.dir} leaves no text for training: data.held_out={config.held_out} holds out"
                f" all of its {count:,} documents. Lower it, or add text."
            )
        train_tokenizer(words, config.vocab_size, config.lowercase).save(folder)

    description = f"a tokenizer of {config.dir}, documents by {stamp['documents']}"
    folder = cache.prepared("tokenizer", fingerprint, build, description).folder
    return load_tokenizer(folder / "tokenizer.json")  # by itself, without importing transformers


def _require_pairs(
    statistics: Mapping[str, SplitStatistics], config: CorpusConfig, separator: str
) -> None:
    documents = sum(found.documents for found in statistics.values())
    if not documents:
        raise _no_text(config)
    if not any(found.pairs for found in statistics.values()):
        raise ValueError(
            f"{config.dir} yields no pairs: each of its {documents:,} documents has only one sentence."
            f" They were separated by {separator}: set data.documents if that is wrong."
        )
    for split, change in (("train", "lower"), ("valid", "raise")):
        if not statistics[split].pairs:
            raise ValueError(
                f"{config.dir} yields no pairs for the split {split}, which has"
                f" {statistics[split].documents:,} of {documents:,} documents: {change}"
                f" data.held_out, which is {config.held_out}, or add text."
            )


def _no_text(config: CorpusConfig) -> ValueError:
    return ValueError(
        f"{config.dir} contains no text: set --config.data.dir to a file or a folder with text."
    )
