"""Small PyTorch modules of the peers, and ours with the same parameters."""

import warnings

import jax.numpy as jnp
import numpy as np
import torch
from transformers import NystromformerConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from nystrom_attention import NystromAttention as LucidrainsAttention
    from transformers.models.nystromformer.modeling_nystromformer import (
        NystromformerSelfAttention,
    )

from nystromformer_jax import SelfAttention, make_core

HEADS, DIM, LANDMARKS, WIDTH = 3, 8, 7, 5
EMBED = HEADS * DIM
QUIRKS = {"landmark_layout": "hf", "pinv_start": "batch_max", "mask_conv": False}


def huggingface(length, *, exact=False):
    """Their attention without the output projection, for inputs of `length` tokens."""
    torch.manual_seed(0)
    config = NystromformerConfig(
        hidden_size=EMBED,
        num_attention_heads=HEADS,
        segment_means_seq_len=LANDMARKS if exact else length,
        num_landmarks=LANDMARKS,
        conv_kernel_size=WIDTH,
    )
    return NystromformerSelfAttention(config).eval()


def lucidrains():
    """Their attention, projections included."""
    torch.manual_seed(0)
    return LucidrainsAttention(
        dim=EMBED,
        dim_head=DIM,
        heads=HEADS,
        num_landmarks=LANDMARKS,
        residual_conv_kernel=WIDTH,
    ).eval()


def tensors(x):
    return torch.tensor(np.asarray(x), requires_grad=True)


def array(tensor):
    return jnp.asarray(tensor.detach().numpy())


def ours_like_huggingface(module, **options):
    """Our module with their parameters; the output projection is the identity."""
    name = "softmax" if options.pop("exact", False) else "nystrom"
    if name == "nystrom":
        options = {"num_landmarks": LANDMARKS, **QUIRKS, **options}
    else:
        options = {"mask_conv": False, **options}
    params = {
        layer: {"kernel": array(weights.weight).T, "bias": array(weights.bias)}
        for layer, weights in (
            ("query", module.query),
            ("key", module.key),
            ("value", module.value),
        )
    }
    params["out"] = {"kernel": jnp.eye(EMBED), "bias": jnp.zeros(EMBED)}
    params["core"] = {"conv_kernel": array(module.conv.weight)[:, 0, :, 0]}
    return SelfAttention(HEADS, make_core(name, conv_kernel_size=WIDTH, **options)), params


def ours_like_lucidrains(module, **options):
    """Our module with their parameters."""
    kernels = array(module.to_qkv.weight).T.reshape(EMBED, 3, EMBED)
    zeros = jnp.zeros(EMBED)
    params = {
        name: {"kernel": kernels[:, i], "bias": zeros}
        for i, name in enumerate(("query", "key", "value"))
    }
    out = module.to_out[0]
    params["out"] = {"kernel": array(out.weight).T, "bias": array(out.bias)}
    params["core"] = {"conv_kernel": array(module.res_conv.weight)[:, 0, :, 0]}
    options = {"num_landmarks": LANDMARKS, **QUIRKS, **options}
    return SelfAttention(HEADS, make_core("nystrom", conv_kernel_size=WIDTH, **options)), params


def additive(mask):
    """Hugging Face's mask: zero at real tokens, the most negative number elsewhere, [B 1 1 L]."""
    lowest = torch.finfo(torch.float32).min
    return torch.tensor(np.where(np.asarray(mask), 0.0, lowest), dtype=torch.float32)[:, None, None]


PEERS = ("huggingface", "lucidrains")


def output_of(name, x, mask=None):
    """Returns the output of a peer for inputs [B L E] and a mask that is True at real tokens."""
    if name == "huggingface":
        return array(
            huggingface(x.shape[1])(tensors(x), None if mask is None else additive(mask))[0]
        )
    return array(
        lucidrains()(tensors(x), mask=None if mask is None else torch.tensor(np.asarray(mask)))
    )
