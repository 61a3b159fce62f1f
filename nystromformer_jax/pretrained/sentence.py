"""Reads how a folder of sentence-transformers makes embeddings: pooling, normalization, prompts."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nystromformer_jax.support.durable import read_json

Pooling = Literal["mean", "first", "max", "mean_sqrt_len"]

_MODULES = "modules.json"
_PROMPTS = "config_sentence_transformers.json"
# Settings of the tokenizer; older folders have the name of the model's kind in it.
_KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_OF_TOKENS = [f"sentence_{kind}_config.json" for kind in _KINDS]
# Key in the config of the pooling module, and value of "pooling_mode", which newer folders have instead.
_POOLINGS: Mapping[str, tuple[str, Pooling]] = {
    "pooling_mode_mean_tokens": ("mean", "mean"),
    "pooling_mode_cls_token": ("cls", "first"),
    "pooling_mode_max_tokens": ("max", "max"),
    "pooling_mode_mean_sqrt_len_tokens": ("mean_sqrt_len_tokens", "mean_sqrt_len"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """How `LanguageModel.embed` makes the embedding of a text.

    Attributes:
      pooling: How hidden states become one embedding; None: `embed` does not support it.
      unsupported: Reason if `pooling` is None.
      normalize: Scale embeddings to length 1.
      max_len: Number of tokens to which texts are truncated; None: that of the model. `load` sets it to that
        of the folder, or of the run that trained the model.
      strip: Remove white space around texts.
      lower: Convert texts to lower case before the tokenizer.
      prompts: Texts in front of every text, by name, such as those of queries and documents.
      default_prompt: Name of the prompt that is used if none is named; None: no prompt.
    """

    pooling: Pooling | None = "mean"
    unsupported: str = ""
    normalize: bool = False
    max_len: int | None = None
    strip: bool = False
    lower: bool = False
    prompts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    default_prompt: str | None = None

    def prepare(self, texts: Sequence[str], prompt: str | None) -> list[str]:
        """Returns texts for the tokenizer, with the prompt of this name or the default one.

        Raises:
          ValueError: The folder has no prompt with this name.
        """
        name = self.default_prompt if prompt is None else prompt
        if name is not None and name not in self.prompts:
            known = f"its prompts are {', '.join(self.prompts)}" if self.prompts else "it has none"
            raise ValueError(f"prompt={name!r} is not a prompt of this model; {known}.")
        front = "" if name is None else self.prompts[name]
        full = [front + text if isinstance(text, str) else text for text in texts]
        if self.strip:
            full = [text.strip() if isinstance(text, str) else text for text in full]
        if self.lower:
            full = [text.lower() if isinstance(text, str) else text for text in full]
        return full


def read_settings(folder: Path) -> tuple[Path, SentenceSettings]:
    """Returns the folder of the model and the settings of its embeddings.

    A folder without modules.json is that of the model, and has the default settings.

    Source: sentence-transformers 5.1, whose `SentenceTransformer` reads the same files.
    Differs: only the modules Transformer, Pooling and Normalize, one pooling at a time and no weighted one.

    Raises:
      ValueError: A file is corrupt.
    """
    file = folder / _MODULES
    if not file.is_file():
        return folder, SentenceSettings()
    modules = _read_modules(file)
    names, paths = [name for name, _ in modules], dict(modules)
    model = folder / paths.get("Transformer", "")
    tokens = next(filter(None, (_read_object(model / name) for name in _OF_TOKENS)), {})
    whole = _read_object(folder / _PROMPTS)
    prompts = whole.get("prompts") or {}
    max_len, default = tokens.get("max_seq_length"), whole.get("default_prompt_name")
    is_valid = isinstance(prompts, dict) and all(isinstance(x, str) for x in prompts.values())
    is_valid &= default is None or isinstance(default, str)
    if not is_valid or not (max_len is None or (isinstance(max_len, int) and max_len > 0)):
        raise ValueError(
            f"{folder} needs a positive max_seq_length, prompts that map names to texts, and the name of the"
            f" default prompt, got {max_len!r}, {prompts!r:.80} and {default!r:.80}."
        )
    kind: Pooling | None = None
    unsupported = f"{file}: the modules {', '.join(names) or 'none'} are unsupported"
    if names in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        kind, unsupported = _read_pooling(folder / paths["Pooling"] / "config.json", prompts)
    settings = SentenceSettings(
        pooling=kind,
        unsupported=unsupported,
        normalize="Normalize" in names,
        max_len=max_len,
        strip=True,
        lower=bool(tokens.get("do_lower_case")),
        prompts=prompts,
        default_prompt=default,
    )
    settings.prepare([], None)  # to validate the default prompt
    return model, settings


def _read_modules(file: Path) -> list[tuple[str, str]]:
    """Returns class and folder of each module, in order."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return [(str(module["type"]).rpartition(".")[2], str(module["path"])) for module in found]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f"{file} must be a JSON list of modules, each with a type and a path: download it again."
        ) from None


def _read_pooling(file: Path, prompts: Mapping[str, str]) -> tuple[Pooling | None, str]:
    """Returns the pooling; if it is unsupported, None and a sentence about it."""
    config = read_json(file)
    named = config.get("pooling_mode")
    prefix = "pooling_mode_"
    chosen = [key for key, value in config.items() if key.startswith(prefix) and value is True]
    found = [
        pooling
        for key, (name, pooling) in _POOLINGS.items()
        if named == name or (named is None and chosen == [key])
    ]
    if not found:
        given = str(named) if named else ", ".join(key.removeprefix(prefix) for key in chosen)
        return None, f"{file}: the pooling {given or 'none'} is unsupported"
    if any(prompts.values()) and config.get("include_prompt") is False:
        return None, f"{file}: a pooling with include_prompt=false is unsupported"
    return found[0], ""


def _read_object(file: Path) -> dict[str, Any]:
    """Returns the content of a JSON file; empty if the file does not exist."""
    return read_json(file) if file.is_file() else {}
