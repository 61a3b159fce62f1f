"""The corpus of pretraining: documents in, pairs of texts out, prepared once.

A corpus is a text file, a folder of them, JSON lines, or a data set of tensorflow-datasets. Its
sentences are found by rules, its tokenizer is read or trained on the documents for training, and
its pairs are written into a hashed folder of the cache, where every process of every host opens them.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from harness import cache, parallel
from language import tokenizer_files
from language.corpus import pieces
from language.corpus.documents import Source
from language.corpus.pairs import NUM_SPECIAL, SPLITS, Pairs
from language.corpus.pieces import PairMaker, SplitStatistics, WordCounter
from language.corpus.sources import open_source
from language.tokenizer import Tokenizer, load_tokenizer, tokenizer_of_words

# Part of every fingerprint: raise it when the same files give other data.
FORMAT = 1

_STATISTICS = "statistics.json"
_VOCABULARY = "vocabulary.json"

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Which text, and how it becomes pairs.

    Args:
      dir: a file or a folder; files are looked for in its subfolders, too.
      source: "text"; "jsonl", JSON objects with their document under `text`, one a line; "tfds", the
        folder of a data set that tensorflow-datasets prepared; "auto" finds out by the names.
      documents: what tells documents apart. "blank_line": empty lines. "heading": lines like
        `= Title =`, as in WikiText; `= = Section = =` is dropped. "file": files. "line": lines, as
        always with JSON and tfds. "auto": headings if the text begins with one, else blank lines if
        there are any, else files if there are several, else lines.
      tokenizer: a path, see `language.tokenizer.load_tokenizer`; empty trains one on the documents.
      vocab_size: of the tokenizer that is trained.
      lowercase: whether that one, or one of a `vocab.txt`, turns text into small letters.
      max_len: tokens of an instance, special ones included.
      short_rate: share of instances that aim at fewer tokens.
      held_out: share of documents for validation; a document's hash with the seed decides.
      examples: only the first so many instances of training; 0 takes all.
      seed: of the split and of the instances, not of the training.
      workers: processes that prepare; 0 is one for every core. The data are the same for any number.
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
        if self.max_len < NUM_SPECIAL + 2:
            raise ValueError(
                f"data.max_len: needs at least {NUM_SPECIAL + 2} tokens, for [CLS] a [SEP] b [SEP]; got"
                f" {self.max_len}."
            )
        if not 0 <= self.short_rate <= 1:
            raise ValueError(f"data.short_rate: needs a share from 0 to 1, got {self.short_rate}.")
        if not 0 < self.held_out < 1:
            raise ValueError(
                f"data.held_out: needs a share between 0 and 1, both splits are used; got"
                f" {self.held_out}."
            )
        if not 0 < self.vocab_size <= 1_000_000:
            raise ValueError(
                f"data.vocab_size: needs 1 to 1,000,000 tokens, got {self.vocab_size:,}."
            )
        for name in ("examples", "workers"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"data.{name}: needs 0 for all, or a positive number; got {getattr(self, name)}."
                )


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Prepared pairs.

    Args:
      tokenizer: that was read or trained.
      splits: "train" and "valid".
      sha256: of the pairs, the vocabulary and the statistics.
      statistics: of each split as prepared, whatever `examples` takes of it.
      folder: where the files are.
    """

    tokenizer: Tokenizer
    splits: Mapping[str, Pairs]
    sha256: str
    statistics: Mapping[str, SplitStatistics]
    folder: Path


def load(config: CorpusConfig) -> Corpus:
    """Opens a corpus, preparing it first where it is not there yet.

    A preparation that was stopped goes on from the pieces that it had finished.

    Raises:
      FileNotFoundError: there is no corpus or no tokenizer where `config` says.
      ValueError: a file that is no text, no JSON lines or no tokenizer; a corpus without pairs for
        either split; a vocabulary that is too small.
      OSError: a file cannot be read, or the cache cannot be written.
    """
    source = open_source(config.dir, config.source, config.documents)
    if config.tokenizer:
        tokenizer = load_tokenizer(config.tokenizer, lowercase=config.lowercase)
    else:
        tokenizer = _trained(config, source)
    fingerprint = {
        "data": "pairs",
        "format": FORMAT,
        "source": source.stamp(),
        "tokenizer": tokenizer.sha256,
        "max_len": config.max_len,
        "short_rate": config.short_rate,
        "held_out": config.held_out,
        "seed": config.seed,
    }

    def build(folder: Path) -> None:
        final_folder = cache.folder_of("corpus", fingerprint)
        _announce("Preparing the corpus", config, source, final_folder)
        pieces_folder = cache.pieces_of(final_folder)
        tokenizer.save(pieces_folder / "tokenizer")
        make = PairMaker(
            source=source,
            tokenizer_file=pieces_folder / "tokenizer" / tokenizer_files.FILE,
            max_len=config.max_len,
            short_rate=config.short_rate,
            held_out=config.held_out,
            seed=config.seed,
        )
        made = pieces.finish(
            make, source.num_pieces, pieces_folder, _num_processes(config), "Pairs"
        )
        statistics = pieces.read_statistics(made)
        _require_pairs(statistics, config)
        pieces.join(folder, made, statistics, pieces.token_dtype(tokenizer))
        plain = {split: dataclasses.asdict(found) for split, found in statistics.items()}
        (folder / _STATISTICS).write_text(json.dumps(plain, indent=2), encoding="utf-8")
        # What the numbers mean; a tokenizer.json would change with the library that writes it.
        (folder / _VOCABULARY).write_text(json.dumps(tokenizer.vocabulary), encoding="utf-8")
        left_out = sum(found.left_out for found in statistics.values())
        documents = sum(found.documents for found in statistics.values())
        _logger.info(
            "%s of %s documents have fewer than two sentences and give no pair",
            f"{left_out:,}",
            f"{documents:,}",
        )

    prepared = cache.prepared("corpus", fingerprint, build)
    return _opened(config, tokenizer, prepared)


def _trained(config: CorpusConfig, source: Source) -> Tokenizer:
    """Opens the tokenizer of a corpus, training it first where it is not there yet."""
    fingerprint: dict[str, Any] = {
        "data": "tokenizer",
        "format": FORMAT,
        "source": source.stamp(),
        "vocab_size": config.vocab_size,
        "lowercase": config.lowercase,
        "held_out": config.held_out,
        "seed": config.seed,
    }

    def build(folder: Path) -> None:
        final_folder = cache.folder_of("tokenizer", fingerprint)
        _announce("Training a tokenizer", config, source, final_folder)
        make = WordCounter(source, config.lowercase, config.held_out, config.seed)
        made = pieces.finish(
            make,
            source.num_pieces,
            cache.pieces_of(final_folder),
            _num_processes(config),
            "Words",
        )
        documents, words = pieces.read_words(made)
        if not documents:
            raise _no_text(config)
        if not words:
            raise ValueError(
                f"{config.dir} leaves no text for training: data.held_out={config.held_out} holds out"
                f" its {documents:,} documents. Lower it, or read more text."
            )
        tokenizer_of_words(words, config.vocab_size, config.lowercase).save(folder)

    return load_tokenizer(cache.prepared("tokenizer", fingerprint, build).folder)


def _opened(config: CorpusConfig, tokenizer: Tokenizer, prepared: cache.Prepared) -> Corpus:
    splits = {split: Pairs.open(prepared.folder, split, tokenizer) for split in SPLITS}
    if config.examples:
        splits["train"] = splits["train"].first(config.examples)
    statistics = json.loads((prepared.folder / _STATISTICS).read_text(encoding="utf-8"))
    return Corpus(
        tokenizer=tokenizer,
        splits=splits,
        sha256=prepared.sha256,
        statistics={split: SplitStatistics(**found) for split, found in statistics.items()},
        folder=prepared.folder,
    )


def _require_pairs(statistics: Mapping[str, SplitStatistics], config: CorpusConfig) -> None:
    documents = sum(found.documents for found in statistics.values())
    if not documents:
        raise _no_text(config)
    if not any(found.pairs for found in statistics.values()):
        raise ValueError(
            f"{config.dir} gives no pair: each of its {documents:,} documents is a document of one"
            f" sentence. Are documents told apart in another way than data.documents={config.documents}?"
        )
    for split, change in (("train", "Lower"), ("valid", "Raise")):
        if not statistics[split].pairs:
            raise ValueError(
                f"{config.dir} gives no pair for the split {split}, which got"
                f" {statistics[split].documents:,} of {documents:,} documents: {change} data.held_out,"
                f" now {config.held_out}, or read more text."
            )


def _no_text(config: CorpusConfig) -> ValueError:
    return ValueError(
        f"{config.dir} holds no text: set --config.data.dir to a file or a folder that does."
    )


def _announce(what: str, config: CorpusConfig, source: Source, folder: Path) -> None:
    how = source.stamp()["documents"]
    _logger.info("%s: reading %s, documents by %s; once, into %s", what, config.dir, how, folder)


def _num_processes(config: CorpusConfig) -> int:
    return parallel.num_processes(config.workers)
