"""Maps Module paths to the names of the corresponding tensors in Hugging Face's layout."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import numpy.typing as npt

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)

ModelClass = type[nn.Module]
Modules = Mapping[str, str]
Tensors = Mapping[str, npt.NDArray[Any]]

MODELS: Mapping[str, ModelClass] = {
    model.__name__: model
    for model in (
        Nystromformer,
        NystromformerForMaskedLM,
        NystromformerForPreTraining,
        NystromformerForSequenceClassification,
        NystromformerForTokenClassification,
        NystromformerForQuestionAnswering,
        NystromformerForMultipleChoice,
    )
}
TOKEN_HEADS = (NystromformerForMaskedLM, NystromformerForPreTraining)

BACKBONE = "nystromformer/"  # path prefix of the backbone in a model with a head
LAYER = "encoder/layer_{i}/"  # path prefix of a layer; `{i}` is its index
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "decoder": "decoder.weight",
    "conv_kernel": "conv.weight",
}
WORDS = "embeddings.word_embeddings.weight"
DECODER = "decoder.weight"  # end of the name of the last layer's kernel in the masked-token head
# Tensors that are ignored without a message: buffers, other heads, poolers, parameters of other attentions.
IGNORED = re.compile(
    r"(.+\.)?embeddings\.(position|token_type)_ids"
    r"|(cls|lm_head|classifier|pre_classifier|qa_outputs)\..+"
    r"|(bert|roberta|nystromformer)\.pooler\..+"
    r"|.+\.attention\.self\.(key\.(weight|bias)|conv\.weight)"
)

_BACKBONE = {
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/type": "embeddings.token_type_embeddings",
    "embeddings/norm": "embeddings.LayerNorm",
    f"{LAYER}attention/query": "encoder.layer.{i}.attention.self.query",
    f"{LAYER}attention/key": "encoder.layer.{i}.attention.self.key",
    f"{LAYER}attention/value": "encoder.layer.{i}.attention.self.value",
    f"{LAYER}attention/core": "encoder.layer.{i}.attention.self",
    f"{LAYER}attention/out": "encoder.layer.{i}.attention.output.dense",
    f"{LAYER}attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    f"{LAYER}mlp/hidden": "encoder.layer.{i}.intermediate.dense",
    f"{LAYER}mlp/output": "encoder.layer.{i}.output.dense",
    f"{LAYER}mlp_norm": "encoder.layer.{i}.output.LayerNorm",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Tensor names of one kind of model in transformers."""

    classes: str  # first part of the class names in transformers, such as "Bert"
    prefix: str  # prefix of backbone names in a model with a head
    heads: Mapping[ModelClass, Modules]  # names of head Modules; {prefix} is replaced

    def modules_of(self, model: ModelClass) -> dict[str, str]:
        """Returns tensor names by Module path for `model`; backbone names have the prefix."""
        before = "" if model is Nystromformer else BACKBONE
        backbone = {before + ours: "{prefix}" + theirs for ours, theirs in _BACKBONE.items()}
        modules = {**backbone, **self.heads.get(model, {})}
        return {ours: theirs.replace("{prefix}", self.prefix) for ours, theirs in modules.items()}

    def canonical(self, tensors: Tensors) -> dict[str, npt.NDArray[Any]]:
        """Returns the tensors with the names of `modules_of`: without wrappers and old suffixes."""
        found = {}
        for name in sorted(tensors):
            new = re.sub(r"^(module\.|_orig_mod\.)+", "", name)
            new = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", new)
            new = re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", new)
            # transformers stores this bias also as decoder.bias, and reads that one. It is sorted last,
            # so it wins.
            new = re.sub(r"\.decoder\.bias$", ".bias", new)
            if new.startswith(("embeddings.", "encoder.", "pooler.")):
                new = self.prefix + new
            found[new] = tensors[name]
        return found


def tensor_name(path: str, modules: Modules) -> str | None:
    """Returns the tensor name for the parameter at `path`, or None if there is none.

    For example, "encoder/layer_3/mlp/hidden/kernel" is looked up as "encoder/layer_{i}/mlp/hidden".
    """
    module, _, leaf = path.rpartition("/")
    layer = re.search(r"layer_(\d+)", module)
    theirs = modules.get(re.sub(r"layer_\d+", "layer_{i}", module))
    if theirs is None:
        return None
    return f"{theirs.format(i=layer[1] if layer else '')}.{LEAVES.get(leaf, leaf)}"


_TOKENS = {
    "mlm": "cls.predictions",
    "mlm/dense": "cls.predictions.transform.dense",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
}
_ROBERTA_TOKENS = {"mlm": "lm_head", "mlm/dense": "lm_head.dense", "mlm/norm": "lm_head.layer_norm"}
_ORDER = {"pooler": "{prefix}pooler.dense", "sentence_order": "cls.seq_relationship"}
_POOLED = {"dense": "{prefix}pooler.dense", "output": "classifier"}
_TWO_LAYERS = {"dense": "classifier.dense", "output": "classifier.out_proj"}
_BERT_HEADS: Mapping[ModelClass, Modules] = {
    NystromformerForMaskedLM: _TOKENS,
    NystromformerForPreTraining: {**_TOKENS, **_ORDER},
    NystromformerForSequenceClassification: _POOLED,
    NystromformerForTokenClassification: {"output": "classifier"},
    NystromformerForQuestionAnswering: {"output": "qa_outputs"},
    NystromformerForMultipleChoice: _POOLED,
}
_ROBERTA_HEADS: Mapping[ModelClass, Modules] = {
    **_BERT_HEADS,
    NystromformerForMaskedLM: _ROBERTA_TOKENS,
    NystromformerForPreTraining: _ROBERTA_TOKENS,  # RoBERTa has no order head
    NystromformerForSequenceClassification: _TWO_LAYERS,
}
_NYSTROMFORMER_HEADS: Mapping[ModelClass, Modules] = {
    **_BERT_HEADS,  # for pretraining as well: Hugging Face has no Nyströmformer with an order head
    NystromformerForSequenceClassification: _TWO_LAYERS,
    NystromformerForMultipleChoice: {"dense": "pre_classifier", "output": "classifier"},
}
# Models with the tensors of RoBERTa, by model_type.
ROBERTAS: Mapping[str, Family] = {
    "roberta": Family("Roberta", "roberta.", _ROBERTA_HEADS),
    "xlm-roberta": Family("XLMRoberta", "roberta.", _ROBERTA_HEADS),
    "camembert": Family("Camembert", "roberta.", _ROBERTA_HEADS),
}
FAMILIES: Mapping[str, Family] = {
    "nystromformer": Family("Nystromformer", "nystromformer.", _NYSTROMFORMER_HEADS),
    "bert": Family("Bert", "bert.", _BERT_HEADS),
    **ROBERTAS,
}
