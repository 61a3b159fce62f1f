"""Nyström attention in JAX and Flax: attention functions, and Modules that use them.

Names are imported on first use, so modules that do not need jax, such as configs, load without it.
"""

import importlib
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    # isort: off
    # Attention functions of query, key and value
    from nystromformer_jax.attention.functions import nystrom_attention, softmax_attention
    from nystromformer_jax.attention.sequence_parallel import sharded_nystrom_attention

    # The attention map: factors, single rows, and the error of the approximation
    from nystromformer_jax.attention.approximation import approximation_error
    from nystromformer_jax.attention.factors import (
        NystromFactors,
        nystrom_attention_rows,
        nystrom_factors,
    )

    # Building blocks
    from nystromformer_jax.attention.convolution import depthwise_convolution
    from nystromformer_jax.attention.ema import multi_scale_ema
    from nystromformer_jax.attention.landmarks import segment_means
    from nystromformer_jax.attention.pinv import iterative_pinv, pinv_residual, ridge_pinv
    from nystromformer_jax.attention.positions import rotary_embedding
    from nystromformer_jax.attention.stages import collect, distribute

    # Modules: attention cores, and layers that use them
    from nystromformer_jax.cores import (
        ChunkedAttention,
        LinearAttention,
        LinformerAttention,
        LongformerAttention,
        NoAttention,
        NystromAttention,
        PerformerAttention,
        ReformerAttention,
        SoftmaxAttention,
        make_core,
    )
    from nystromformer_jax.layers.gated_ema import GatedEmaBlock, MultiScaleEma
    from nystromformer_jax.layers.encoder import (
        Encoder,
        EncoderBlock,
        MlpBlock,
        MultiHeadAttention,
        SelfAttention,
    )

    # Nyström attention for Flax's own modules
    from nystromformer_jax.layers.adapters import attention_fn

    # BERT-style models
    from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
    from nystromformer_jax.models import (
        NystromformerForMaskedLM,
        NystromformerForMultipleChoice,
        NystromformerForPreTraining,
        NystromformerForQuestionAnswering,
        NystromformerForSequenceClassification,
        NystromformerForTokenClassification,
        hidden_states,
    )

    # isort: on

__all__ = [
    "ChunkedAttention",
    "Encoder",
    "EncoderBlock",
    "GatedEmaBlock",
    "LinearAttention",
    "LinformerAttention",
    "LongformerAttention",
    "MlpBlock",
    "MultiHeadAttention",
    "MultiScaleEma",
    "NoAttention",
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
    "approximation_error",
    "attention_fn",
    "collect",
    "depthwise_convolution",
    "distribute",
    "hidden_states",
    "iterative_pinv",
    "make_core",
    "multi_scale_ema",
    "nystrom_attention",
    "nystrom_attention_rows",
    "nystrom_factors",
    "pinv_residual",
    "ridge_pinv",
    "rotary_embedding",
    "segment_means",
    "sharded_nystrom_attention",
    "softmax_attention",
]


def lazy_names(
    package: str, modules: Sequence[str], names: Collection[str]
) -> Callable[[str], Any]:
    """Returns a package's `__getattr__`, which imports `modules` and their `names` on first use."""

    def find(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in names:
            for module in modules:
                found = vars(importlib.import_module(f"{package}.{module}"))
                if name in found:
                    return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


if not TYPE_CHECKING:  # otherwise a type checker would accept every name
    __getattr__ = lazy_names(
        __name__,
        (
            "attention.functions",
            "attention.sequence_parallel",
            "attention.approximation",
            "attention.factors",
            "attention.convolution",
            "attention.ema",
            "attention.landmarks",
            "attention.pinv",
            "attention.stages",
            "cores",
            "attention.positions",
            "layers.gated_ema",
            "layers.encoder",
            "layers.adapters",
            "backbone",
            "models",
            "nnx",
        ),
        __all__,
    )


def __dir__() -> list[str]:
    return [*globals(), *__all__]
