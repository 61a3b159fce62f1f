"""Reads the tokenizer of a model's folder with the package transformers."""

import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from nystromformer_jax.support.durable import read_json

MASK_TOKENS = ("[MASK]", "<mask>")
CONFIG = "tokenizer_config.json"
INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]
CLASS_NAME = re.compile(r"\w+Tokenizer(Fast)?")
OWN_MODELS = ("nystromformer", "nystromformer_jax")
# Classes of tokenizers by their files, if the folder does not name a class.
CLASSES = {
    "tokenizer.json": "PreTrainedTokenizerFast",
    "vocab.txt": "BertTokenizer",
    "vocab.json": "RobertaTokenizer",
}


def load_tokenizer(folder: Path, **options: Any) -> Any:
    """Returns the tokenizer of a model's folder, as transformers reads it.

    The class is that of `tokenizer_config.json`, or of the model in `config.json` beside it. Without a class,
    it follows from the files. `options` are arguments of the class, such as `do_lower_case`.

    Raises:
      FileNotFoundError: The folder has no tokenizer.
      ValueError: A file of the tokenizer is corrupt.
      ImportError: transformers is not installed.
    """
    found = [name for name in CLASSES if (folder / name).is_file()]
    if not found and not any(folder.glob("[!.]*.model")):  # SentencePiece
        raise FileNotFoundError(
            f"{folder} contains no tokenizer: it needs tokenizer.json, vocab.txt (BERT), or vocab.json beside"
            " merges.txt (RoBERTa)."
        )
    if found == ["vocab.json"] and not (folder / "merges.txt").is_file():
        raise FileNotFoundError(f"{folder} needs both merges.txt and vocab.json of RoBERTa.")
    transformers = import_transformers()
    name = _class_name(folder) or (CLASSES[found[0]] if found else "")
    kind = transformers.AutoTokenizer
    if CLASS_NAME.fullmatch(name):
        kind = getattr(transformers, name, kind)
    options = {**options, "local_files_only": True, "trust_remote_code": False}
    # Some classes return no types by default, although their models have been trained with types.
    names_are_given = "model_input_names" in read_options(folder)
    if not names_are_given:
        options["model_input_names"] = INPUT_NAMES
    try:
        tokenizer = kind.from_pretrained(folder, **options)
        if _is_rebuilt(tokenizer, folder / "tokenizer.json"):
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder, **options)
        # A BERT with the tokenizer of XLM-RoBERTa has been trained without types.
        if not names_are_given and _model_type(folder) in ("bert", *OWN_MODELS):
            types = tokenizer("a", "b", return_token_type_ids=True)["token_type_ids"]
            if 1 not in types:
                tokenizer.model_input_names = [
                    name for name in INPUT_NAMES if name != "token_type_ids"
                ]
    except Exception as error:  # the libraries raise nothing narrower
        reason = " ".join(str(error).split())
        raise ValueError(f"The tokenizer of {folder} cannot be read: {reason:.300}") from None
    if tokenizer.mask_token is None:  # a tokenizer.json does not say which token is the mask
        known = tokenizer.get_vocab()
        tokenizer.mask_token = next((token for token in MASK_TOKENS if token in known), None)
    return tokenizer


def import_transformers() -> Any:
    """Returns the module transformers, without its message that PyTorch is missing.

    Raises:
      ImportError: It is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ImportError(
            "Reading a tokenizer needs the package transformers: pip install transformers."
        )
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    import transformers

    return transformers


def read_options(folder: Path) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json`, or an empty dict if there is none.

    Raises:
      ValueError: The file is not a JSON object, or an option of BERT's normalizer is not a boolean.
    """
    file = folder / CONFIG
    config = read_json(file) if file.is_file() else {}
    for name in ("do_lower_case", "tokenize_chinese_chars", "strip_accents"):
        value = config.get(name, True)
        if not isinstance(value, bool) and (name, value) != ("strip_accents", None):
            raise ValueError(f"{file}: {name} must be true or false, got {value!r}.")
    return config


def _is_rebuilt(tokenizer: Any, file: Path) -> bool:
    """Returns True if a tokenizer is another kind of model than its tokenizer.json.

    Some classes, such as BertTokenizer, read only the vocabulary of the file.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not file.is_file():
        return False
    found = type(backend.model).__name__
    return bool(read_json(file)["model"].get("type", found) != found)


def _model_type(folder: Path) -> str | None:
    """Returns the kind of the model whose config.json is beside the tokenizer."""
    file = folder / "config.json"
    return read_json(file).get("model_type") if file.is_file() else None


def _class_name(folder: Path) -> str:
    """Returns the tokenizer's class, "AutoTokenizer" if transformers chooses it, or "" if it is unknown."""
    options, model = read_options(folder), _model_type(folder)
    # The class that transformers has for Nyströmformer is ALBERT's, which needs a SentencePiece model.
    if model in OWN_MODELS:
        return str(options.get("tokenizer_class") or "")
    return "AutoTokenizer" if options.get("tokenizer_class") or (options and model) else ""
