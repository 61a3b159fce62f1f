"""Loads, trains and saves tokenizers with the library `tokenizers`, without downloads."""

import copy
import dataclasses
import functools
import hashlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dataprep import archives, cache
from language import wordpiece
from nystromformer_jax.support.durable import write_bytes
from nystromformer_jax.support.tokenizer import import_transformers, read_options
from nystromformer_jax.support.tokenizer import load_tokenizer as load_of_folder

# Special tokens of BERT and RoBERTa; ALBERT uses some of both.
SPECIAL_TOKENS = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
KNOWN_FILES = f"{FILE}, vocab.txt (BERT), or vocab.json beside merges.txt (RoBERTa)"
BATCH_CHARACTERS = 2**18  # characters that are encoded in one call
MAX_WORD_CHARACTERS = 100  # longer words become one unknown token, as in BERT


def batches(texts: Iterable[str], characters: int = BATCH_CHARACTERS) -> Iterator[list[str]]:
    """Yields lists of texts of about `characters` in total; the default is for one call of a tokenizer."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Converts text to token ids and back."""

    backend: Any  # a `tokenizers.Tokenizer`
    vocab_size: int  # including added tokens
    pad_id: int
    unk_id: int | None  # None for byte-level tokenizers, which have no unknown token
    cls_id: int
    sep_id: int
    mask_id: int
    pair_separators: int  # separators between two texts: 1 as in BERT, 2 as in RoBERTa
    special_ids: tuple[int, ...]  # sorted
    sha256: str
    truncation_side: str = "right"  # the end at which a text that is too long loses tokens
    has_types: bool = True  # if False, both texts of a pair have type 0

    @classmethod
    def from_backend(cls, backend: Any, origin: str) -> "Tokenizer":
        """Returns a `Tokenizer` around a `tokenizers.Tokenizer`; `origin` is for error messages."""
        backend.no_truncation()
        backend.no_padding()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        ids = {
            name: next(vocabulary[token] for token in tokens if token in vocabulary)
            for name, tokens in SPECIAL_TOKENS.items()
            if not vocabulary.keys().isdisjoint(tokens)
        }
        missing = [name for name in SPECIAL_TOKENS if name not in ids and name != "unk"]
        if missing:
            names = " and ".join(" or ".join(SPECIAL_TOKENS[name]) for name in missing)
            raise ValueError(
                f"The tokenizer {origin} has no token {names}: use the tokenizer of a BERT-style model, such"
                " as one that run_pretrain.py trains."
            )
        special = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}
        special.update(ids.values())
        # "[MASK]" in a text is split like other text; it does not become the mask token. Other special
        # tokens, such as markers of entities that a user added, remain tokens.
        as_text = set(itertools.chain.from_iterable(SPECIAL_TOKENS.values()))
        # The hash covers all special tokens, because pretraining never masks them.
        hashed = _mark_special(
            backend, lambda token: token["special"] or token["content"] in as_text
        )
        backend = _mark_special(backend, lambda token: token["content"] in as_text)
        backend.encode_special_tokens = True
        return cls(
            backend=backend,
            vocab_size=max(vocabulary.values()) + 1,
            pad_id=ids["pad"],
            unk_id=ids.get("unk"),
            cls_id=ids["cls"],
            sep_id=ids["sep"],
            mask_id=ids["mask"],
            pair_separators=2 if backend.num_special_tokens_to_add(is_pair=True) == 4 else 1,
            special_ids=tuple(sorted(special)),
            sha256=hashlib.sha256(hashed.to_str().encode()).hexdigest(),
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text; names in `SPECIAL_TOKENS` are read as text."""
        batch = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        reserved = self._reserved
        return [
            ids if reserved.isdisjoint(ids) else [id for id in ids if id not in reserved]
            for ids in (encoding.ids for encoding in batch)
        ]

    def encode_with_spans(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Returns the tokens of `encode`, and the start and end of each token in characters."""
        batch = self.backend.encode_batch(texts, add_special_tokens=False)
        reserved = self._reserved
        found = []
        for encoding in batch:
            pairs = zip(encoding.ids, encoding.offsets, strict=True)
            kept = [(id, span) for id, span in pairs if id not in reserved]
            found.append(([id for id, _ in kept], [span for _, span in kept]))
        return found

    @property
    def _reserved(self) -> frozenset[int]:
        """Ids that are removed from encoded texts; some vocabularies have "[MASK]" as an ordinary word."""
        return frozenset((self.pad_id, self.cls_id, self.sep_id, self.mask_id))

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of token ids, including special tokens."""
        return self.backend.decode([int(id) for id in ids], skip_special_tokens=False)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by token, sorted by id."""
        ids = self.backend.get_vocab(with_added_tokens=True)
        return dict(sorted(ids.items(), key=lambda item: item[1]))

    @functools.cached_property
    def word_mark(self) -> str:
        """The mark "##" continues a word, "Ġ" and "▁" begin one; "" if every token begins one.

        Raises:
          ValueError: The tokens have no mark. Only pretraining needs one.
        """
        return _word_mark(json.loads(self.backend.to_str()))

    def word_starts(self) -> npt.NDArray[np.bool_]:
        """Returns [V], True for tokens that begin a word, and for special tokens."""
        starts = np.zeros(self.vocab_size, np.bool_)
        marks_inside = self.word_mark == wordpiece.PREFIX  # other marks begin a word
        for token, id in self.vocabulary.items():
            starts[id] = token.startswith(self.word_mark) != marks_inside
        starts[list(self.special_ids)] = True
        return starts

    @property
    def token_ids(self) -> dict[str, int]:
        """Special-token ids by their keys in a Hugging Face `config.json`."""
        names = ("pad_token_id", "bos_token_id", "eos_token_id")
        return dict(zip(names, (self.pad_id, self.cls_id, self.sep_id), strict=True))

    def save(self, folder: Path, max_len: int | None = None, num_types: int = 2) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, as required by `transformers`.

        The written tokenizer adds special tokens as in training, `[CLS] a [SEP] b [SEP]`, even if this
        tokenizer adds others or none. Texts are separated by `pair_separators` of `[SEP]`. `max_len` is the
        number of tokens to which transformers truncates, and `num_types` the number of types of the model.
        """
        import tokenizers

        cls, sep = map(self.backend.id_to_token, (self.cls_id, self.sep_id))
        second = min(num_types - 1, 1) if self.has_types else 0
        backend = _mark_special(self.backend, lambda token: token["id"] in self.special_ids)
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=" ".join(
                [cls, "$A", *[sep] * self.pair_separators, f"$B:{second}", f"{sep}:{second}"]
            ),
            special_tokens=[(cls, self.cls_id), (sep, self.sep_id)],
        )
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": [
                "input_ids",
                *(["token_type_ids"] if self.has_types else []),
                "attention_mask",
            ],
            "truncation_side": self.truncation_side,
            **({} if max_len is None else {"model_max_length": max_len}),
            **{
                f"{name}_token": self.backend.id_to_token(getattr(self, f"{name}_id"))
                for name in SPECIAL_TOKENS
                if getattr(self, f"{name}_id") is not None
            },
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (
            (FILE, backend.to_str(pretty=True)),
            (CONFIG, json.dumps(config, indent=2, ensure_ascii=False)),
        ):
            write_bytes(folder / name, f"{content}\n".encode())


def load_tokenizer(path: str | os.PathLike[str], *, lowercase: bool = True) -> Tokenizer:
    """Loads a tokenizer from a folder or a file.

    Args:
      path: A folder with `tokenizer.json`, BERT's `vocab.txt`, or RoBERTa's `vocab.json` beside `merges.txt`,
        such as the folder of a Hugging Face model. It is read as by transformers, with its
        `tokenizer_config.json` and its added tokens. Or one of these files by itself.
      lowercase: Convert text to lower case for a `vocab.txt`, unless `do_lower_case` is set in
        `tokenizer_config.json` of the same folder.

    Raises:
      FileNotFoundError: The tokenizer is missing.
      ValueError: The file is not a tokenizer, or a special token is missing.
      ImportError: transformers is not installed.
    """
    origin = cache.user_path(os.fspath(path))
    if not origin.exists():
        raise FileNotFoundError(
            f"The tokenizer {origin} does not exist: set data.tokenizer to {KNOWN_FILES}, or to a folder"
            " with one, or leave it empty to train one."
        )
    with archives.reading(origin):
        if origin.is_dir():
            return _from_folder(origin, lowercase)
        return Tokenizer.from_backend(_open_file(origin, lowercase), str(origin))


def _from_folder(folder: Path, lowercase: bool) -> Tokenizer:
    """Returns the tokenizer of a folder, as transformers reads it."""
    options, vocabulary = read_options(folder), folder / "vocab.txt"
    own = {}
    if vocabulary.is_file() and not (folder / FILE).is_file():
        _check_vocabulary(vocabulary)
        own = {"do_lower_case": options.get("do_lower_case", lowercase)}
    tokenizer = load_of_folder(folder, **own)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"The tokenizer of {folder} is not one of the library tokenizers: convert it to tokenizer.json."
        )
    side, has_types = tokenizer.truncation_side, "token_type_ids" in tokenizer.model_input_names
    found = Tokenizer.from_backend(copy.deepcopy(backend), str(folder))
    sha256 = found.sha256
    if (side, has_types) != ("right", True):  # otherwise as in version 0.2.0, whose runs resume
        sha256 = hashlib.sha256(f"{sha256} {side} {has_types}".encode()).hexdigest()
    return dataclasses.replace(found, truncation_side=side, has_types=has_types, sha256=sha256)


def bert_words(counts: Mapping[str, int], lowercase: bool) -> Counter[str]:
    """Splits strings as BERT's pre-tokenizer does; returns word counts from string counts."""
    from tokenizers import normalizers, pre_tokenizers

    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    splitter = pre_tokenizers.BertPreTokenizer()
    words: Counter[str] = Counter()
    for raw, count in counts.items():
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(raw)):
            if len(word) <= MAX_WORD_CHARACTERS:
                words[word] += count
    return words


def train_tokenizer(counts: Mapping[str, int], vocab_size: int, lowercase: bool) -> Tokenizer:
    """Returns a WordPiece tokenizer with BERT's normalizer; training is deterministic.

    `counts` is the result of `bert_words` with the same `lowercase`. `vocab_size` includes special tokens.
    With too few words the tokenizer has fewer tokens.
    """
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

    if not counts:
        raise ValueError("Training a tokenizer needs text, but the text is empty.")
    special = [names[0] for names in SPECIAL_TOKENS.values()]
    vocabulary = {token: i for i, token in enumerate(wordpiece.learn(counts, vocab_size, special))}
    model = models.WordPiece(
        vocabulary, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(wordpiece.PREFIX)
    backend.add_special_tokens(
        [tokenizers.AddedToken(token, normalized=False) for token in special]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    return Tokenizer.from_backend(backend, "that was trained")


def _open_file(path: Path, lowercase: bool) -> Any:
    """Returns the `tokenizers.Tokenizer` in a file that is not in a model's folder."""
    import tokenizers

    try:
        for ending in ("vocab.json", "merges.txt"):
            if path.name.endswith(ending):
                prefix = str(path).removesuffix(ending)
                files = {"vocab": f"{prefix}vocab.json", "merges": f"{prefix}merges.txt"}
                return import_transformers().RobertaTokenizer(**files).backend_tokenizer
        if path.suffix == ".txt":
            _check_vocabulary(path)
            names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
            given = {k: v for k, v in read_options(path.parent).items() if k in names}
            options = {"do_lower_case": lowercase, **given}
            own = import_transformers().BertTokenizer(vocab=str(path), **options)
            return own.backend_tokenizer
        return tokenizers.Tokenizer.from_buffer(path.read_bytes())
    except (OSError, ImportError):
        raise
    except Exception as error:  # the libraries raise nothing narrower
        raise ValueError(
            f"{path} is not a tokenizer ({error}): it needs to be {KNOWN_FILES}."
        ) from None


def _check_vocabulary(path: Path) -> None:
    """Raises ValueError unless a vocab.txt has BERT's special tokens, which transformers would add."""
    try:
        tokens = set(path.read_bytes().decode().split("\n"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a tokenizer (it is not UTF-8 text).") from None
    names = [bert for bert, _ in SPECIAL_TOKENS.values()]
    if missing := [name for name in names if name not in {token.rstrip("\r") for token in tokens}]:
        raise ValueError(
            f"{path} is not a tokenizer of a BERT-style model: it has no token {', '.join(missing)}."
        )


def _mark_special(backend: Any, is_special: Callable[[Mapping[str, Any]], bool]) -> Any:
    """Returns a copy of a backend, in which the added tokens with `is_special(token)` are special."""
    import tokenizers

    description = json.loads(backend.to_str())
    for token in description["added_tokens"]:
        token["special"] = is_special(token)
    return tokenizers.Tokenizer.from_str(json.dumps(description))


def _word_mark(description: Mapping[str, Any]) -> str:
    """Returns the `word_mark` of a tokenizer, from the content of tokenizer.json."""
    model = description["model"]
    if model["type"] == "WordPiece":
        prefix = model.get("continuing_subword_prefix", wordpiece.PREFIX)
        if prefix == wordpiece.PREFIX:
            return wordpiece.PREFIX
    elif model["type"] == "WordLevel":
        return ""
    else:
        parts = json.dumps(
            [description[part] for part in ("pre_tokenizer", "normalizer", "decoder")]
        )
        for part, mark in (("ByteLevel", "Ġ"), ("Metaspace", "▁"), (json.dumps("▁"), "▁")):
            if part in parts:
                return mark
    raise ValueError(
        "The tokenizer does not mark where words begin, as pretraining needs: use WordPiece with"
        f" {wordpiece.PREFIX}, byte-level BPE with Ġ, or a model with ▁."
    )
