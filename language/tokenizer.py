"""Tokenizers: a vocabulary, its special tokens, and where words begin; read, trained and written.

The work is that of the library `tokenizers`. Every file is read by its content: nothing is downloaded.
"""

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import cache
from harness.whole_files import write_whole
from language import tokenizer_files, wordpiece
from language.tokenizer_files import CONFIG, FILE, KNOWN_FILES, LONGEST_WORD, SPECIAL_TOKENS


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back.

    Args:
      backend: a `tokenizers.Tokenizer`.
      vocab_size: ids are 0 to `vocab_size` - 1, those of added tokens included.
      unk_id: None where every text has tokens, as with bytes.
      special_ids: sorted; these and all others that the tokenizer itself calls special.
      word_mark: how it tells where words begin: "##" continues one, "Ġ" and "▁" begin one, "" all do.
      sha256: of everything it does.
    """

    backend: Any
    vocab_size: int
    pad_id: int
    unk_id: int | None
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    word_mark: str
    sha256: str

    @classmethod
    def of(cls, backend: Any, origin: str) -> "Tokenizer":
        """Finds out what is special about a `tokenizers.Tokenizer`; `origin` names it in errors."""
        backend.no_truncation()
        backend.no_padding()
        # A text that says "[MASK]" means these six characters.
        backend.encode_special_tokens = True
        vocabulary = backend.get_vocab(with_added_tokens=True)
        found = {
            name: tokenizer_files.first_of(vocabulary, tokens)
            for name, tokens in SPECIAL_TOKENS.items()
        }
        ids = {name: id for name, id in found.items() if id is not None}
        missing = [name for name in SPECIAL_TOKENS if name not in ids and name != "unk"]
        if missing:
            names = " and ".join(" or ".join(SPECIAL_TOKENS[name]) for name in missing)
            raise ValueError(
                f"The tokenizer {origin} has no token {names}, which masked language modelling needs:"
                " take the tokenizer of a BERT-like model, or leave data.tokenizer empty to train one."
            )
        special = {id for id, token in backend.get_added_tokens_decoder().items() if token.special}
        return cls(
            backend=backend,
            vocab_size=max(vocabulary.values()) + 1,
            pad_id=ids["pad"],
            unk_id=ids.get("unk"),
            cls_id=ids["cls"],
            sep_id=ids["sep"],
            mask_id=ids["mask"],
            special_ids=tuple(sorted(special.union(ids.values()))),
            word_mark=tokenizer_files.word_mark(json.loads(backend.to_str()), origin),
            sha256=hashlib.sha256(backend.to_str().encode()).hexdigest(),
        )

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of every text, without special tokens around them or, but unknown ones, in them."""
        batch = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        reserved = frozenset((self.pad_id, self.cls_id, self.sep_id, self.mask_id))
        return [
            # A vocabulary of whole words may hold "[MASK]" as one.
            ids if reserved.isdisjoint(ids) else [id for id in ids if id not in reserved]
            for ids in (encoding.ids for encoding in batch)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids, special tokens by their names."""
        return self.backend.decode([int(id) for id in ids], skip_special_tokens=False)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of every token, in the order of the ids."""
        ids = self.backend.get_vocab(with_added_tokens=True)
        return dict(sorted(ids.items(), key=lambda item: item[1]))

    def word_starts(self) -> npt.NDArray[np.bool_]:
        """[V], True where a token begins a word; special tokens do."""
        starts = np.zeros(self.vocab_size, np.bool_)
        for token, id in self.vocabulary.items():
            starts[id] = token.startswith(self.word_mark) != (self.word_mark == wordpiece.PREFIX)
        starts[list(self.special_ids)] = True
        return starts

    @property
    def token_ids(self) -> dict[str, int]:
        """The special ids by their names in a Hugging Face `config.json`."""
        return {
            "pad_token_id": self.pad_id,
            "bos_token_id": self.cls_id,
            "eos_token_id": self.sep_id,
        }

    def save(self, folder: Path, max_len: int | None = None) -> None:
        """Writes `tokenizer.json`, and beside it what transformers needs to open the folder.

        Args:
          folder: made if missing.
          max_len: tokens that the model takes, for others to know.
        """
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
            **({} if max_len is None else {"model_max_length": max_len}),
            **{
                f"{name}_token": self.backend.id_to_token(getattr(self, f"{name}_id"))
                for name in SPECIAL_TOKENS
                if getattr(self, f"{name}_id") is not None
            },
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in (
            (FILE, self.backend.to_str(pretty=True)),
            (CONFIG, json.dumps(config, indent=2, ensure_ascii=False)),
        ):
            write_whole(folder / name, f"{content}\n".encode())


def load_tokenizer(path: str | os.PathLike[str], *, lowercase: bool = True) -> Tokenizer:
    """Opens a tokenizer.

    Args:
      path: a `tokenizer.json`; BERT's `vocab.txt`; RoBERTa's `vocab.json` or `merges.txt`, the other
        one beside it; or a folder with one of these, such as that of a Hugging Face model.
      lowercase: of a `vocab.txt`, which does not say whether its words are in small letters; a folder's
        `tokenizer_config.json` says it.

    Raises:
      FileNotFoundError: there is none.
      ValueError: a file is no tokenizer, or lacks a special token.
    """
    origin = cache.user_path(os.fspath(path))
    if not origin.exists():
        raise FileNotFoundError(
            f"There is no tokenizer {origin}: set data.tokenizer to {KNOWN_FILES}, or to a folder with"
            " one, or leave it empty to train one."
        )
    try:
        return Tokenizer.of(tokenizer_files.open_backend(origin, lowercase), str(origin))
    except OSError as error:
        if error.strerror is None:  # our own sentence
            raise
        raise OSError(f"The tokenizer {origin} cannot be read ({error.strerror}).") from error


def bert_words(counts: Mapping[str, int], lowercase: bool) -> Counter[str]:
    """Counts words as BERT splits them, given the counts of what stands between white space."""
    backend = tokenizer_files.bert({"[UNK]": 0}, lowercase)
    words: Counter[str] = Counter()
    for raw, count in counts.items():
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(
            backend.normalizer.normalize_str(raw)
        ):
            if len(word) <= LONGEST_WORD:
                words[word] += count
    return words


def tokenizer_of_words(counts: Mapping[str, int], vocab_size: int, lowercase: bool) -> Tokenizer:
    """Trains a WordPiece tokenizer, with BERT's normalizer; the same counts give the same one.

    Args:
      counts: of `bert_words`.
      vocab_size: tokens, special ones included; fewer where there are too few words for so many.
      lowercase: turn text into small letters without accents, as `bert_words` did.

    Raises:
      ValueError: `vocab_size` is too small for the letters, or there is no word.
    """
    if not counts:
        raise ValueError("There is no text to train a tokenizer on.")
    special = [names[0] for names in SPECIAL_TOKENS.values()]
    vocabulary = wordpiece.learn(counts, vocab_size, special)
    backend = tokenizer_files.bert({token: i for i, token in enumerate(vocabulary)}, lowercase)
    return Tokenizer.of(backend, "that was trained")
