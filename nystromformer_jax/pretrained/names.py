"""Maps Module paths to the names of the corresponding tensors in other implementations."""

import dataclasses
import re
from collections.abc import Mapping

import flax.linen as nn

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
    NystromformerForTokenClassification,
)
from nystromformer_jax.support.spelling import nearest

ModelClass = type[nn.Module]
Modules = Mapping[str, str]

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

BACKBONE = "nystromformer/"  # path prefix of the backbone in a model with a head
TOKEN_HEADS = (NystromformerForMaskedLM, NystromformerForPreTraining)
LEAVES = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "decoder": "decoder.weight",
    "conv_kernel": "conv.weight",
}


@dataclasses.dataclass(frozen=True)
class Family:
    """Tensor names of one implementation."""

    prefix: str  # prefix of backbone names in a model with a head
    roots: tuple[str, ...]  # first parts of backbone names after the prefix
    modules: Modules  # names of the backbone's Modules
    heads: Mapping[ModelClass, Modules]  # names of head Modules; other heads are unsupported
    decoder: str  # last layer of the masked-token head
    classes: str = ""  # first part of the class names in transformers, such as "Bert"

    def modules_of(self, model: ModelClass) -> dict[str, str]:
        """Returns tensor names by Module path for `model`; backbone names have the prefix."""
        before = "" if model is Nystromformer else BACKBONE
        backbone = {before + ours: self.prefix + theirs for ours, theirs in self.modules.items()}
        return {**backbone, **self.heads.get(model, {})}

    def canonical(self, name: str) -> str:
        """Returns a tensor name in the form of `modules_of`, without wrapper prefixes and old suffixes."""
        name = re.sub(r"^(module\.|_orig_mod\.)+", "", name)
        name = re.sub(r"\bLayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"\bLayerNorm\.beta$", "LayerNorm.bias", name)
        return self.prefix + name if name.startswith(self.roots) else name


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


def find_model(name: str) -> ModelClass:
    """Returns the model class called `name`; raises ValueError if it is unknown."""
    if name not in MODELS:
        raise ValueError(f"Unknown model class {name!r}{nearest(name, MODELS)}")
    return MODELS[name]


# Tensors that are ignored without a message: buffers, other heads, poolers, and parameters of other
# attentions.
IGNORED = re.compile(
    r"(.+\.)?embeddings\.(position|token_type)_ids"
    r"|(cls|lm_head|classifier|pre_classifier|qa_outputs|mlm|sen_class|sen_classifer|qahead)\..+"
    r"|(bert|roberta|nystromformer|model)\.pooler\..+"
    r"|.+\.attention\.self\.(key\.(weight|bias)|conv\.weight)"
)


def encoder_modules(prefix: str, modules: Modules) -> dict[str, str]:
    """Returns tensor names for the Modules of a layer; `{i}` in `prefix` is the layer index."""
    return {f"encoder/layer_{{i}}/{ours}": prefix + theirs for ours, theirs in modules.items()}


# The authors' tensor names for the Modules of attention.
AUTHORS_ATTENTION = {
    "attention/query": "mha.W_q",
    "attention/key": "mha.W_k",
    "attention/value": "mha.W_v",
    "attention/core": "mha.attn",
    "attention/out": "mha.ff",
}


_EMBEDDINGS = {
    "embeddings/word": "embeddings.word_embeddings",
    "embeddings/position": "embeddings.position_embeddings",
    "embeddings/type": "embeddings.token_type_embeddings",
}
_HUGGING_FACE = {
    **_EMBEDDINGS,
    "embeddings/norm": "embeddings.LayerNorm",
    **encoder_modules(
        "encoder.layer.{i}.",
        {
            "attention/query": "attention.self.query",
            "attention/key": "attention.self.key",
            "attention/value": "attention.self.value",
            "attention/core": "attention.self",
            "attention/out": "attention.output.dense",
            "attention_norm": "attention.output.LayerNorm",
            "mlp/hidden": "intermediate.dense",
            "mlp/output": "output.dense",
            "mlp_norm": "output.LayerNorm",
        },
    ),
}
_ROBERTA_TOKENS = {"mlm": "lm_head", "mlm/dense": "lm_head.dense", "mlm/norm": "lm_head.layer_norm"}
_TOKEN_AND_SPAN: Mapping[ModelClass, Modules] = {
    NystromformerForTokenClassification: {"output": "classifier"},
    NystromformerForQuestionAnswering: {"output": "qa_outputs"},
}
_TWO_LAYERS = {"dense": "classifier.dense", "output": "classifier.out_proj"}


def _pooled_classifier(prefix: str) -> Modules:
    return {"dense": f"{prefix}.pooler.dense", "output": "classifier"}


def _bert_heads(prefix: str) -> dict[ModelClass, Modules]:
    tokens = {
        "mlm": "cls.predictions",
        "mlm/dense": "cls.predictions.transform.dense",
        "mlm/norm": "cls.predictions.transform.LayerNorm",
    }
    order = {"pooler": f"{prefix}.pooler.dense", "sentence_order": "cls.seq_relationship"}
    return {
        NystromformerForMaskedLM: tokens,
        NystromformerForPreTraining: {**tokens, **order},
        **_TOKEN_AND_SPAN,
    }


def _hugging_face(
    name: str,
    classes: str,
    heads: Mapping[ModelClass, Modules],
    decoder: str = "cls.predictions.decoder",
) -> Family:
    roots = ("embeddings.", "encoder.", "pooler.")
    return Family(f"{name}.", roots, _HUGGING_FACE, heads, decoder, classes)


def _roberta(classes: str) -> Family:
    heads: dict[ModelClass, Modules] = {
        NystromformerForMaskedLM: _ROBERTA_TOKENS,
        NystromformerForPreTraining: _ROBERTA_TOKENS,  # RoBERTa has no order head
        NystromformerForSequenceClassification: _TWO_LAYERS,
        NystromformerForMultipleChoice: _pooled_classifier("roberta"),
        **_TOKEN_AND_SPAN,
    }
    return _hugging_face("roberta", classes, heads, decoder="lm_head.decoder")


# Models with the tensors of RoBERTa, by model_type.
ROBERTAS: Mapping[str, Family] = {
    "roberta": _roberta("Roberta"),
    "xlm-roberta": _roberta("XLMRoberta"),
    "camembert": _roberta("Camembert"),
}
FAMILIES: Mapping[str, Family] = {
    "nystromformer": _hugging_face(
        "nystromformer",
        "Nystromformer",
        {
            # Hugging Face has no Nyströmformer for pretraining, so BERT's names are used.
            **_bert_heads("nystromformer"),
            NystromformerForSequenceClassification: _TWO_LAYERS,
            NystromformerForMultipleChoice: {"dense": "pre_classifier", "output": "classifier"},
        },
    ),
    "bert": _hugging_face(
        "bert",
        "Bert",
        {
            **_bert_heads("bert"),
            NystromformerForSequenceClassification: _pooled_classifier("bert"),
            NystromformerForMultipleChoice: _pooled_classifier("bert"),
        },
    ),
    **ROBERTAS,
}

# Source: mlpen/Nystromformer at 5689313, code/model.py with model_wrapper.py ("code"), and
# reorganized_code/BERT, reorganized_code/RoBERT and reorganized_code/encoders/backbones
# ("reorganized", or "shared" if all layers share parameters).
_AUTHORS_TOKENS = {"mlm": "mlm.mlm_class", "mlm/dense": "mlm.dense", "mlm/norm": "mlm.norm"}


def _authors(layer: str, mlp: Modules) -> Family:
    norms = {"attention_norm": "norm1", "mlp_norm": "norm2"}
    layers = encoder_modules(layer, {**AUTHORS_ATTENTION, **norms, **mlp})
    return Family(
        prefix="model.",
        roots=(),
        modules={**_EMBEDDINGS, "embeddings/norm": "embeddings.norm", **layers},
        heads={
            NystromformerForMaskedLM: _AUTHORS_TOKENS,
            NystromformerForPreTraining: {
                **_AUTHORS_TOKENS,
                "pooler": "model.pooler",
                "sentence_order": "sen_class",
            },
            NystromformerForSequenceClassification: {
                "dense": "sen_classifer.dense",
                "output": "sen_classifer.classifer",
            },
            NystromformerForQuestionAnswering: {"output": "qahead"},
        },
        decoder="mlm.mlm_class",
    )


AUTHORS: Mapping[str, Family] = {
    "code": _authors("transformer_{i}.", {"mlp/hidden": "ff1", "mlp/output": "ff2"}),
    "reorganized": _authors(
        "backbone.backbone.encoders.{i}.", {"mlp/hidden": "ff.0", "mlp/output": "ff.2"}
    ),
    "shared": _authors("backbone.backbone.encoder.", {"mlp/hidden": "ff.0", "mlp/output": "ff.2"}),
}
