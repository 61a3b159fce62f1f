"""Converts a Hugging Face config.json to the fields of a `NystromformerConfig`, and back."""

import dataclasses
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.attention.options import DEFAULTS
from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import (
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained.names import (
    FAMILIES,
    MODELS,
    ROBERTAS,
    TOKEN_HEADS,
    Family,
    ModelClass,
)
from nystromformer_jax.support.spelling import nearest

SECTION = "nystromformer_jax"  # section of config.json written by this package
# Key of config.json: largest number of tokens of a text in the run that trained the model.
MAX_TEXT_LEN = "max_text_len"
WEIGHTS_HASH = "weights_sha256"  # key in the section of older versions, not used
# Fields of `NystromformerConfig` without a key in Hugging Face, by layout; stored in the section.
_OPTIONS = (
    *(name for name in DEFAULTS if name != "num_landmarks"),
    "implementation",
    "classifier_activation",
    "choice_activation",
)
SECTION_FIELDS = {
    "nystromformer": ("attention", "classifier_dropout_rate", *_OPTIONS),
    **dict.fromkeys(["bert", *ROBERTAS], (*_OPTIONS, "num_landmarks")),
}
# Hugging Face's key: field of `NystromformerConfig`, and default of a missing key (transformers 5.23).
FIELDS: Mapping[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 30_522),
    "hidden_size": ("embed_dim", 768),
    "num_hidden_layers": ("num_layers", 12),
    "num_attention_heads": ("num_heads", 12),
    "intermediate_size": ("mlp_dim", 3072),
    "type_vocab_size": ("num_types", 2),
    "max_position_embeddings": ("max_len", 512),
    "hidden_dropout_prob": ("dropout_rate", 0.1),
    "attention_probs_dropout_prob": ("attention_dropout_rate", 0.1),
    "layer_norm_eps": ("layer_norm_epsilon", 1e-12),
    "initializer_range": ("initializer_range", 0.02),
    "tie_word_embeddings": ("tie_word_embeddings", True),
}
# Other defaults, by model_type.
_FAMILY_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "nystromformer": {
        "vocab_size": 30_000,
        "max_position_embeddings": 510,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "segment_means_seq_len": 64,
        "num_landmarks": 64,
        "conv_kernel_size": 65,
    },
    "roberta": {"vocab_size": 50_265},
}
_READ_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}
_WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "tanh": "tanh"}
# The only values that this package supports.
_BERT_OPTIONS: Mapping[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
# Default ids of special tokens in transformers, for a config.json without them.
_ROBERTA_IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_TOKEN_IDS: Mapping[str, Mapping[str, int | None]] = {
    **dict.fromkeys(FAMILIES, _ROBERTA_IDS),
    "bert": {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None},
}
# Keys of a config.json that are converted to fields, or that describe the file instead of the model.
_NOT_METADATA = {
    *FIELDS,
    *_FAMILY_DEFAULTS["nystromformer"],
    "num_labels",
    "_name_or_path",
    "architectures",
    "decision_threshold",  # of fine-tuning by version 0.2.0
    "auto_map",
    "dtype",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
    SECTION,
}


class UpstreamMismatchWarning(UserWarning):
    """A saved model gives different outputs in transformers and in this package."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Description of a checkpoint, read from config.json."""

    where: Path  # for messages
    family: Family
    architecture: str  # name of the upstream class, for messages
    model: ModelClass | None  # class of this package for that architecture
    fields: Mapping[str, Any]  # values for `NystromformerConfig`
    position_offset: int  # unused first rows of the position table
    # Key of the length that equals num_landmarks, if that means exact attention; else "".
    equal_key: str

    @property
    def why_exact(self) -> str:
        """Why attention is exact although the checkpoint has landmarks; empty if it is not, or has none."""
        if not self.equal_key:
            return ""
        landmarks = self.fields["num_landmarks"]
        return f"num_landmarks = {self.equal_key} = {landmarks}, and equal numbers mean exact attention"

    @property
    def conv_width(self) -> int:
        """Width of the stored convolution kernels; 0 for none."""
        width: int = self.fields["conv_kernel_size"]
        return width if has_convolution(self.fields["attention"], width) else 0


def read_source(raw: Mapping[str, Any], where: Path) -> Source:
    """Returns the description of a checkpoint from `raw`, a config.json in Hugging Face's layout."""
    kind = _model_type(raw, where)
    fields = _upstream_fields(raw, kind, where)
    names = raw.get("architectures")
    architecture = str(names[0]) if isinstance(names, list) and names else ""
    head = re.fullmatch(rf"{FAMILIES[kind].classes}(Model|For\w+)", architecture)
    model = MODELS.get("Nystromformer" + head[1].removeprefix("Model")) if head else None
    section = _read_section(raw, kind, where)
    is_exact = False
    if kind != "nystromformer":
        # transformers copies the section to models with other heads, whose activation is always tanh.
        if model is NystromformerForSequenceClassification:
            section.pop("classifier_activation", None)
        if model is NystromformerForMultipleChoice:
            section.pop("choice_activation", None)
    elif section and "transformers_version" not in raw:  # a key that this package never writes
        if "model_class" in section:
            architecture = section.pop("model_class")
            model = MODELS.get(architecture)
    else:
        is_exact = fields["attention"] == "softmax"
        fields["classifier_activation"] = None
        fields["attention_dropout_rate"] = 0.0  # Hugging Face never applies it
        if section:
            # transformers copies the section when it saves a model, which it may have trained further.
            section = {"pinv_start": "batch_max"}
            warnings.warn(
                f"{where} was saved by transformers, so the section {SECTION} of its config.json is ignored,"
                " and the model computes what transformers computes. If the weights were not trained"
                " there, restore the config.json that this package wrote, or pass attention, its options"
                " (also pinv_start) and the activation of the head.",
                UpstreamMismatchWarning,
                stacklevel=3,
            )
    return Source(
        where=where,
        family=FAMILIES[kind],
        architecture=architecture,
        model=model,
        fields={**fields, **section},
        position_offset=position_offset(raw),
        equal_key="segment_means_seq_len" if is_exact else "",
    )


def _model_type(raw: Mapping[str, Any], where: Path) -> str:
    """Returns the key in `FAMILIES` of a config.json; raises ValueError if there is none."""
    kind = str(raw.get("model_type"))
    if kind in FAMILIES:
        return kind
    if "model_type" not in raw and raw.keys() >= {"data", "model", "optimizer", "train"}:
        raise ValueError(
            f"{where} is the folder of a run, not of a model: pass {where / 'model'}, which finished runs"
            " of run_pretrain.py and run_finetune.py have."
        )
    if "model_type" not in raw and "model" in raw:
        raise ValueError(
            f"{where} contains a config.json of the authors' code: pass the file of the checkpoint, not"
            " its folder."
        )
    raise ValueError(
        f"The config.json of {where} has an unsupported model_type,"
        f" {kind!r}{nearest(kind, FAMILIES)}"
    )


def _upstream_fields(raw: Mapping[str, Any], kind: str, where: Path) -> dict[str, Any]:
    """Returns the fields of the model that transformers builds from a config.json."""
    values = {name: default for name, (_, default) in FIELDS.items()}
    values |= {"hidden_act": "gelu", "num_labels": 2, **_FAMILY_DEFAULTS.get(kind, {}), **raw}

    def read(key: str, of: type) -> Any:
        value = values[key]
        is_valid = isinstance(value, bool) == (of is bool) and isinstance(value, (int, of))
        if not (is_valid and abs(value) < math.inf):  # also NaN
            raise ValueError(
                f"{where} has {key} = {value!r} in its config.json; it must be of type {of.__name__} and"
                " finite."
            )
        return of(value)

    fields = {ours: read(name, type(default)) for name, (ours, default) in FIELDS.items()}
    if raw.get("pad_token_id") is not None:
        read("pad_token_id", int)  # to validate it
    activation = str(values["hidden_act"])
    if activation not in _READ_ACTIVATIONS:
        raise ValueError(
            f"The config.json of {where} has an unsupported hidden_act,"
            f" {activation!r}{nearest(activation, _READ_ACTIVATIONS)}"
        )
    labels = raw.get("id2label") or _default_labels(read("num_labels", int))
    if not isinstance(labels, Mapping) or not all(key.isdecimal() for key in labels):
        raise ValueError(
            f"id2label in the config.json of {where} must give the name of each class by its number, such"
            f' as {{"0": "no", "1": "yes"}}, got {labels!r:.80}.'
        )
    metadata = {key: raw[key] for key in raw if key not in _NOT_METADATA}
    fields |= {
        "activation": _READ_ACTIVATIONS[activation],
        "num_labels": len(labels),
        "metadata": {**metadata, "id2label": labels},
    }
    if kind == "nystromformer":
        values["conv_kernel_size"] = values["conv_kernel_size"] or 0  # null in older versions
        landmarks = read("num_landmarks", int)
        is_exact = landmarks == read("segment_means_seq_len", int)
        return fields | {
            "attention": "softmax" if is_exact else "nystrom",
            "num_landmarks": landmarks,
            "conv_kernel_size": read("conv_kernel_size", int),
        }
    for key, supported in _BERT_OPTIONS.items():
        if raw.get(key, supported) not in (supported, None):
            raise ValueError(
                f"{where} has {key} = {raw[key]!r} in its config.json, which is unsupported:"
                f" only {key} = {supported!r}."
            )
    return fields | {
        "max_len": fields["max_len"] - position_offset(raw),
        "attention": "softmax",
        "conv_kernel_size": 0,
        "classifier_dropout_rate": (
            None if raw.get("classifier_dropout") is None else read("classifier_dropout", float)
        ),
        "classifier_activation": "tanh",
        "choice_activation": "tanh",
    }


def _read_section(raw: Mapping[str, Any], kind: str, where: Path) -> dict[str, Any]:
    """Returns the section `SECTION` without the hash of the weights; empty if there is none."""
    section = raw.get(SECTION) or {}
    if not isinstance(section, Mapping):
        raise ValueError(
            f"{SECTION} in the config.json of {where} must be a JSON object, got {section}."
        )
    known = {*SECTION_FIELDS[kind], "conv_kernel_size", "model_class", WEIGHTS_HASH}
    for key in section.keys() - known:
        raise ValueError(
            f"The config.json of {where} has the unknown key {SECTION}.{key}{nearest(key, known)} A"
            " newer version of this package may have written it."
        )
    for key, value in section.items():
        if isinstance(getattr(NystromformerConfig, key, None), bool) and not isinstance(
            value, bool
        ):
            raise ValueError(
                f"The config.json of {where} needs true or false for {SECTION}.{key}, got {value!r}."
            )
    return {key: section[key] for key in section if key != WEIGHTS_HASH}


def position_offset(raw: Mapping[str, Any]) -> int:
    """Returns the number of unused first rows in the position table of a model."""
    if raw["model_type"] in ROBERTAS:  # its positions start after pad_token_id
        padding = raw.get("pad_token_id")
        return 1 + (1 if padding is None else int(padding))
    return 2 if raw["model_type"] == "nystromformer" else 0


def has_convolution(attention: str, conv_kernel_size: int) -> bool:
    """Returns True if a model with this attention has convolution kernels."""
    return attention in ("nystrom", "softmax") and conv_kernel_size > 0


def layout_of(model: ModelClass, config: NystromformerConfig) -> str:
    """Returns the key in `names.FAMILIES` of the layout that `save_pretrained` writes.

    A model with softmax attention and no convolution is equivalent to BERT or RoBERTa, unless its head
    has an activation that only Nyströmformer has.
    """
    is_bert = config.attention == "softmax" and config.conv_kernel_size == 0
    if not is_bert or head_activations(model, config)[0] != "tanh":
        return "nystromformer"
    kind = str(config.metadata.get("model_type"))
    # RoBERTa has no sentence-order head, and the activation of its head for masked tokens is fixed.
    fits_roberta = model not in TOKEN_HEADS or (
        model is not NystromformerForPreTraining and config.activation == "gelu"
    )
    return kind if kind in ROBERTAS and fits_roberta else "bert"


def head_activations(model: ModelClass, config: NystromformerConfig) -> tuple[str, str]:
    """Returns the activation of the head, and that of Hugging Face's Nyströmformer.

    Returns "tanh" twice for a model whose head has no such activation.
    """
    if model is NystromformerForSequenceClassification:
        return config.classifier_activation or config.activation, config.activation
    if model is NystromformerForMultipleChoice:
        return config.choice_activation, "relu"
    return "tanh", "tanh"


def write_config(
    model: ModelClass, config: NystromformerConfig, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the config.json of a model, in the layout of transformers.

    It includes `config.metadata`, updated with `more`.

    Raises:
      ValueError: `more` names a wrong number of labels.
    """
    if model is NystromformerForQuestionAnswering:  # transformers makes an output per label
        config = dataclasses.replace(config, num_labels=2)
    layout = layout_of(model, config)
    head = "Model" if model is Nystromformer else model.__name__.removeprefix("Nystromformer")
    section = {name: getattr(config, name) for name in SECTION_FIELDS[layout]}
    fields = {
        **_metadata(config, layout, more),
        "model_type": layout,
        **{name: getattr(config, ours) for name, (ours, _) in FIELDS.items()},
        "hidden_act": _WRITTEN_ACTIVATIONS[config.activation],
    }
    if layout == "nystromformer":
        has_kernels = has_convolution(config.attention, config.conv_kernel_size)
        if model is NystromformerForPreTraining:
            head, section["model_class"] = "ForMaskedLM", model.__name__
        if not has_kernels:
            section["conv_kernel_size"] = config.conv_kernel_size  # at least 1 in transformers
        is_exact = config.attention != "nystrom"
        fields["num_landmarks"] = config.num_landmarks
        fields["segment_means_seq_len"] = config.num_landmarks if is_exact else config.max_len
        fields["conv_kernel_size"] = config.conv_kernel_size if has_kernels else 1
    else:
        fields["max_position_embeddings"] += position_offset(fields)
        fields["classifier_dropout"] = config.classifier_dropout_rate
    return {**fields, "architectures": [FAMILIES[layout].classes + head], SECTION: section}


def _default_labels(count: int) -> dict[str, str]:
    return {str(i): f"LABEL_{i}" for i in range(count)}


def _metadata(config: NystromformerConfig, layout: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata with a label for every class and the special-token ids of `layout`."""
    source = config.metadata.get("model_type", layout)
    ids = _TOKEN_IDS.get(source, {}) if source != layout else {}
    metadata = {**ids, **config.metadata, **more}
    labels = metadata.get("id2label") or _default_labels(config.num_labels)
    if len(labels) != config.num_labels:
        if "id2label" in more:
            raise ValueError(
                f"id2label must name the {config.num_labels} labels of the model, got {len(labels)}"
                " names."
            )
        metadata.pop("problem_type", None)  # that of another head
        labels = _default_labels(config.num_labels)
    label2id = {str(label): int(number) for number, label in labels.items()}
    return {**metadata, "id2label": labels, "label2id": label2id}
