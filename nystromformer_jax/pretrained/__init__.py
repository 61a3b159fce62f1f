"""Reads and writes checkpoints of the BERT-style models in Hugging Face's layouts.

    from nystromformer_jax.pretrained import from_pretrained, save_pretrained

Needs the package safetensors (extra `language`). Checkpoints that PyTorch pickled are converted by
`python -m nystromformer_jax.pretrained convert`, which needs torch (extra `peers`).
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
