"""The public names, each written once: `__init__.py` imports them from here on first use."""

__version__: str

from . import backbone as backbone, cores as cores, models as models, nnx as nnx

# Attention functions of query, key and value
from .attention.functions import (
    nystrom_attention as nystrom_attention,
    softmax_attention as softmax_attention,
)
from .attention.sequence_parallel import sharded_nystrom_attention as sharded_nystrom_attention

# The attention map: factors, single rows, and the error of the approximation
from .attention.approximation import approximation_error as approximation_error
from .attention.factors import (
    NystromFactors as NystromFactors,
    nystrom_attention_rows as nystrom_attention_rows,
    nystrom_factors as nystrom_factors,
)

# Building blocks
from .attention.convolution import depthwise_convolution as depthwise_convolution
from .attention.ema import multi_scale_ema as multi_scale_ema
from .attention.landmarks import segment_means as segment_means
from .attention.pinv import (
    iterative_pinv as iterative_pinv,
    pinv_residual as pinv_residual,
    ridge_pinv as ridge_pinv,
)
from .attention.positions import rotary_embedding as rotary_embedding
from .attention.stages import (
    collect as collect,
    distribute as distribute,
)

# Modules: attention cores, and layers that use them
from .cores import (
    ChunkedAttention as ChunkedAttention,
    LinearAttention as LinearAttention,
    LinformerAttention as LinformerAttention,
    LongformerAttention as LongformerAttention,
    NoAttention as NoAttention,
    NystromAttention as NystromAttention,
    PerformerAttention as PerformerAttention,
    ReformerAttention as ReformerAttention,
    SoftmaxAttention as SoftmaxAttention,
    make_core as make_core,
)
from .layers.gated_ema import (
    GatedEmaBlock as GatedEmaBlock,
    MultiScaleEma as MultiScaleEma,
)
from .layers.encoder import (
    Encoder as Encoder,
    EncoderBlock as EncoderBlock,
    MlpBlock as MlpBlock,
    MultiHeadAttention as MultiHeadAttention,
    SelfAttention as SelfAttention,
)

# Attention maps of a model's layers
from .layers.maps import (
    AttentionMap as AttentionMap,
    attention_maps as attention_maps,
    attention_rollout as attention_rollout,
)

# Nyström attention for Flax's own modules
from .layers.adapters import attention_fn as attention_fn

# BERT-style models
from .backbone import (
    Nystromformer as Nystromformer,
    NystromformerConfig as NystromformerConfig,
)
from .models import (
    NystromformerForMaskedLM as NystromformerForMaskedLM,
    NystromformerForMultipleChoice as NystromformerForMultipleChoice,
    NystromformerForPreTraining as NystromformerForPreTraining,
    NystromformerForQuestionAnswering as NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification as NystromformerForSequenceClassification,
    NystromformerForTokenClassification as NystromformerForTokenClassification,
    hidden_states as hidden_states,
)
