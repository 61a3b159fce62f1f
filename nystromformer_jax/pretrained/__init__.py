"""Checkpoints of the BERT-style models: read from Hugging Face's layouts, written in one of them.

    from nystromformer_jax.pretrained import from_pretrained, save_pretrained

Needs the package safetensors (extra `language`). Checkpoints that PyTorch pickled are converted by
`python -m nystromformer_jax.pretrained convert`, which needs torch (extra `peers`).
"""

from nystromformer_jax.pretrained.folder import (
    ExactAttentionWarning,
    from_pretrained,
    read_config,
    save_pretrained,
)

__all__ = ["ExactAttentionWarning", "from_pretrained", "read_config", "save_pretrained"]
