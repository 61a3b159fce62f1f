"""Loads and saves checkpoints of BERT-style models in Hugging Face format.

    from nystromformer_jax.pretrained import from_pretrained, load, save_pretrained

Requires the package safetensors (extra `language`), and torch (extra `peers`) for pytorch_model.bin and for
checkpoints of the authors' code.
"""

from nystromformer_jax.pretrained.config_json import UpstreamMismatchWarning
from nystromformer_jax.pretrained.folder import (
    ExactAttentionWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)
from nystromformer_jax.pretrained.language_model import LanguageModel, TruncationWarning, load
from nystromformer_jax.pretrained.resize import resize_token_embeddings

__all__ = [
    "ExactAttentionWarning",
    "LanguageModel",
    "TruncationWarning",
    "UpstreamMismatchWarning",
    "from_pretrained",
    "load",
    "read_config",
    "resize_token_embeddings",
    "save_pretrained",
]
