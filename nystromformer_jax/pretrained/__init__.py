"""Loads and saves checkpoints of BERT-style models in Hugging Face format.

    from nystromformer_jax.pretrained import from_pretrained, save_pretrained

Requires the package safetensors (extra `language`). To convert pickled PyTorch checkpoints, run
`python -m nystromformer_jax.pretrained convert`, which requires torch (extra `peers`).
"""

from nystromformer_jax.pretrained.config_json import UpstreamMismatchWarning
from nystromformer_jax.pretrained.folder import (
    ExactAttentionWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)

__all__ = [
    "ExactAttentionWarning",
    "UpstreamMismatchWarning",
    "from_pretrained",
    "read_config",
    "save_pretrained",
]
