"""Reads the tokenizer of a model's folder with the package tokenizers or transformers."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MASK_TOKENS = ("[MASK]", "<mask>")


def load_tokenizer(folder: Path) -> Any:
    """Returns the tokenizer of a model's folder.

    Raises:
      FileNotFoundError: The folder has no tokenizer.
      ValueError: The file tokenizer.json is corrupt.
      ImportError: The required package is not installed.
    """
    has_file = (folder / "tokenizer.json").is_file()
    if has_file and importlib.util.find_spec("tokenizers") is not None:
        return FileTokenizer(folder / "tokenizer.json")
    if importlib.util.find_spec("transformers") is None:
        needed = "tokenizers" if has_file else "transformers"
        raise ImportError(
            f"Reading the tokenizer of {folder} needs the package {needed}: pip install {needed}."
        )
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, verbose=False)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise FileNotFoundError(f"{folder} has no tokenizer: {reason}") from None


class FileTokenizer:
    """A tokenizer.json with the interface of transformers' tokenizers that `LanguageModel` uses."""

    def __init__(self, path: Path) -> None:
        import tokenizers

        try:
            self.backend_tokenizer = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"{path} is not a tokenizer ({error}).") from None
        self.backend_tokenizer.no_padding()
        ids = {token: self.backend_tokenizer.token_to_id(token) for token in MASK_TOKENS}
        self.mask_token = next((token for token, id in ids.items() if id is not None), None)
        self.mask_token_id = ids.get(self.mask_token or "")

    def __call__(
        self,
        texts: Sequence[str | tuple[str, str]],
        *,
        truncation: bool = False,
        max_length: int = 0,
    ) -> dict[str, list[list[int]]]:
        """Returns ids, mask and types of texts or of pairs of texts."""
        if truncation:
            self.backend_tokenizer.enable_truncation(max_length)
        else:
            self.backend_tokenizer.no_truncation()
        found = self.backend_tokenizer.encode_batch(texts)
        return {
            "input_ids": [encoding.ids for encoding in found],
            "attention_mask": [encoding.attention_mask for encoding in found],
            "token_type_ids": [encoding.type_ids for encoding in found],
        }

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str | None]:
        """Returns the tokens of ids, and None for an id without a token."""
        return [self.backend_tokenizer.id_to_token(id) for id in ids]
