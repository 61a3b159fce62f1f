"""Downloads models from the Hugging Face Hub."""

import re
from pathlib import Path

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")  # OWNER/MODEL
SMALL_FILES = ["*.json", "*.txt", "*.model"]  # config and tokenizer


def download(name: str) -> Path:
    """Returns the folder of a model of the Hugging Face Hub; downloads the model unless it is cached."""
    command = f"hf download {name} --local-dir FOLDER"
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise FileNotFoundError(
            f"{name} is not a folder, and the package huggingface_hub, which downloads models, is not"
            f" installed: pip install huggingface_hub, or run {command} elsewhere and load FOLDER."
        ) from None
    try:
        folder = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=[*SMALL_FILES, "*pytorch_model*"]))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(
            f"{name} is not a folder, and {command} failed: {' '.join(str(error).split())}"
        ) from None
    return folder
