"""The files that tokenizers come in, and what a tokenizer says about itself."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from language import wordpiece

# Of BERT and of RoBERTa. ALBERT has some of either.
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
LONGEST_WORD = 100  # characters; a longer word is one unknown token, as in BERT


def open_backend(path: Path, lowercase: bool) -> Any:
    """The `tokenizers.Tokenizer` of a file or a folder; see `language.tokenizer.load_tokenizer`."""
    import tokenizers

    path = _file(path)
    if path.name.endswith("merges.txt"):
        path = path.with_name(f"{path.name.removesuffix('merges.txt')}vocab.json")
    if path.name.endswith(".txt"):
        return bert(_bert_vocabulary(path), _lowercase_of(path.parent, lowercase))
    try:
        content = path.read_text(encoding="utf-8")
        model = json.loads(content)["model"]
    except KeyError:
        return _roberta(path)
    except (ValueError, TypeError):
        raise _no_tokenizer(path, "it is not JSON") from None
    if isinstance(model, int):  # a vocabulary that has the word
        return _roberta(path)
    try:
        return tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise _no_tokenizer(path, str(error)) from None


def bert(vocabulary: dict[str, int], lowercase: bool) -> Any:
    """WordPiece as in BERT."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(wordpiece.PREFIX)
    _add_special(backend, vocabulary, pair="[CLS] $A [SEP] $B:1 [SEP]:1")
    return backend


def word_mark(description: Mapping[str, Any], origin: str) -> str:
    """See `Tokenizer`."""
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
        f"The tokenizer {origin} does not say where words begin: it needs WordPiece with"
        f" {wordpiece.PREFIX}, byte-level BPE with Ġ, or a model with ▁."
    )


def first_of(vocabulary: Mapping[str, int], tokens: Iterable[str]) -> int | None:
    """The id of the first of `tokens` that there is."""
    return next((vocabulary[token] for token in tokens if token in vocabulary), None)


def _file(path: Path) -> Path:
    """The file that says most about the tokenizer at `path`."""
    if not path.is_dir():
        return path
    for name in (FILE, "vocab.txt", "vocab.json"):
        if (path / name).is_file():
            return path / name
    raise FileNotFoundError(f"{path} holds no tokenizer: it needs {KNOWN_FILES}.")


def _bert_vocabulary(path: Path) -> dict[str, int]:
    """One token a line."""
    try:
        tokens = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError:
        raise _no_tokenizer(path, "it is not UTF-8 text") from None
    vocabulary = {token.rstrip("\r"): i for i, token in enumerate(tokens)}
    if "[UNK]" not in vocabulary or len(vocabulary) != len(tokens):
        raise _no_tokenizer(path, "a vocab.txt has one token a line, each once, [UNK] among them")
    return vocabulary


def _lowercase_of(folder: Path, otherwise: bool) -> bool:
    """What a model's folder says about capital letters."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return bool(config.get("do_lower_case", otherwise))
    except (OSError, ValueError, AttributeError):
        return otherwise


def _roberta(path: Path) -> Any:
    """Byte-level BPE as in RoBERTa."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    merges = path.with_name(f"{path.name.removesuffix('vocab.json')}merges.txt")
    if not path.name.endswith("vocab.json") or not merges.is_file() or not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} needs both {merges.name} and {path.name} of a byte-level tokenizer."
        )
    try:
        backend = tokenizers.Tokenizer(models.BPE.from_file(str(path), str(merges)))
    except Exception as error:  # the library raises nothing narrower
        raise _no_tokenizer(path, str(error)) from None
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    _add_special(backend, backend.get_vocab(), pair="<s> $A </s> </s> $B </s>")
    return backend


def _add_special(backend: Any, vocabulary: Mapping[str, int], *, pair: str) -> None:
    """Marks the special tokens that the vocabulary has; `pair` says how others join two texts."""
    import tokenizers
    from tokenizers import processors

    tokens = [
        token for tokens in SPECIAL_TOKENS.values() for token in tokens if token in vocabulary
    ]
    backend.add_special_tokens(
        [  # as in RoBERTa, the mask stands for a word with the space before it
            tokenizers.AddedToken(token, lstrip=token == "<mask>", normalized=False)
            for token in tokens
        ]
    )
    around = [token for token in pair.replace(":1", "").split() if not token.startswith("$")]
    if vocabulary.keys() >= set(around):
        single, _, _ = pair.replace("</s> </s>", "</s>").partition(" $B")
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=pair,
            special_tokens=[(token, vocabulary[token]) for token in sorted(set(around))],
        )


def _no_tokenizer(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is no tokenizer ({reason}): it needs to be {KNOWN_FILES}.")
