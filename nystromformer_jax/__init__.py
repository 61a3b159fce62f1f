"""Nyström attention in JAX and Flax.

Functions of query, key and value come first; Modules own parameters and nothing else.
"""

# Functions: attention
from nystromformer_jax.attention import nystrom_attention, softmax_attention

# Functions: the pieces attention is made of
from nystromformer_jax.convolution import depthwise_convolution

# Modules: cores (attention as a small Module), and the encoder around them
from nystromformer_jax.cores import NystromAttention, SoftmaxAttention, make_core
from nystromformer_jax.landmarks import segment_means
from nystromformer_jax.modules import Encoder, EncoderBlock, MlpBlock, SelfAttention
from nystromformer_jax.pinv import iterative_pinv
from nystromformer_jax.steps import collect, distribute

__version__ = "0.1.0.dev0"

__all__ = [
    "Encoder",
    "EncoderBlock",
    "MlpBlock",
    "NystromAttention",
    "SelfAttention",
    "SoftmaxAttention",
    "collect",
    "depthwise_convolution",
    "distribute",
    "iterative_pinv",
    "make_core",
    "nystrom_attention",
    "segment_means",
    "softmax_attention",
]
