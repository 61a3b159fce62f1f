"""Nyström attention in JAX and Flax: functions of query, key and value, and Modules over them."""

# isort: off

# Attention functions of query, key and value
from nystromformer_jax.attention import nystrom_attention, softmax_attention
from nystromformer_jax.sequence_parallel import sharded_nystrom_attention

# The attention map: factors and single rows
from nystromformer_jax.factors import NystromFactors, nystrom_attention_rows, nystrom_factors

# Building blocks
from nystromformer_jax.convolution import depthwise_convolution
from nystromformer_jax.landmarks import segment_means
from nystromformer_jax.pinv import iterative_pinv, pinv_residual
from nystromformer_jax.stages import collect, distribute

# Modules: attention cores, and layers that use them
from nystromformer_jax.cores import (
    LinearAttention,
    LinformerAttention,
    LongformerAttention,
    NystromAttention,
    PerformerAttention,
    ReformerAttention,
    SoftmaxAttention,
    make_core,
)
from nystromformer_jax.modules import (
    Encoder,
    EncoderBlock,
    MlpBlock,
    MultiHeadAttention,
    SelfAttention,
)

# BERT-style models
from nystromformer_jax.models import (
    Nystromformer,
    NystromformerConfig,
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)

# isort: on

__version__ = "0.1.0"

__all__ = [
    "Encoder",
    "EncoderBlock",
    "LinearAttention",
    "LinformerAttention",
    "LongformerAttention",
    "MlpBlock",
    "MultiHeadAttention",
    "NystromAttention",
    "NystromFactors",
    "Nystromformer",
    "NystromformerConfig",
    "NystromformerForMaskedLM",
    "NystromformerForMultipleChoice",
    "NystromformerForPreTraining",
    "NystromformerForQuestionAnswering",
    "NystromformerForSequenceClassification",
    "NystromformerForTokenClassification",
    "PerformerAttention",
    "ReformerAttention",
    "SelfAttention",
    "SoftmaxAttention",
    "collect",
    "depthwise_convolution",
    "distribute",
    "iterative_pinv",
    "make_core",
    "nystrom_attention",
    "nystrom_attention_rows",
    "nystrom_factors",
    "pinv_residual",
    "segment_means",
    "sharded_nystrom_attention",
    "softmax_attention",
]
