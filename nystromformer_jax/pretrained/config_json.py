"""Converts a Hugging Face config.json to a `NystromformerConfig`, and back."""

import dataclasses
import functools
import hashlib
import math
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nystromformer_jax.attention.options import DEFAULTS
from nystromformer_jax.backbone import Nystromformer, NystromformerConfig
from nystromformer_jax.models import (
    NystromformerForMultipleChoice,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.names import (
    FAMILIES,
    MODELS,
    ROBERTAS,
    TOKEN_HEADS,
    Family,
    ModelClass,
    find_model,
)
from nystromformer_jax.support.spelling import nearest

Tensors = Mapping[str, npt.NDArray[Any]]

SECTION = "nystromformer_jax"  # section of config.json written by this package
# Fields of `NystromformerConfig` without a key in Hugging Face; stored in the section.
SECTION_FIELDS = (
    "attention",
    *(name for name in DEFAULTS if name != "num_landmarks"),
    "implementation",
    "classifier_activation",
    "choice_activation",
)
BERT_SECTION_FIELDS = (*SECTION_FIELDS[1:], "num_landmarks")
WEIGHTS_HASH = "weights_sha256"  # key in the section: hash of the weights
POSITION_OFFSET = 2  # unused first rows of Hugging Face's Nyströmformer position table

# Hugging Face's key to field of `NystromformerConfig`.
SIZE_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "type_vocab_size": "num_types",
    "max_position_embeddings": "max_len",
}
_FLOAT_FIELDS = {
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
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
# Default ids of special tokens in transformers, for a config.json without them.
_TOKEN_IDS: Mapping[str, Mapping[str, int | None]] = {
    "nystromformer": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "bert": {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None},
    **{kind: {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2} for kind in ROBERTAS},
}
# Defaults for missing keys (transformers 5.23).
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "num_labels": 2,
    "tie_word_embeddings": True,
}
_BERT_DEFAULTS = {"max_position_embeddings": 512, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
_FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "nystromformer": {
        "vocab_size": 30_000,
        "max_position_embeddings": 510,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "segment_means_seq_len": 64,
        "num_landmarks": 64,
        "conv_kernel_size": 65,
    },
    "bert": {"vocab_size": 30_522, **_BERT_DEFAULTS},
    "roberta": {"vocab_size": 50_265, **_BERT_DEFAULTS},
    "xlm-roberta": {"vocab_size": 30_522, **_BERT_DEFAULTS},
    "camembert": {"vocab_size": 30_522, **_BERT_DEFAULTS},
}
# Keys of a config.json that are converted to fields, or that describe the file instead of the model.
_NOT_METADATA = {
    *_DEFAULTS,
    *_FAMILY_DEFAULTS["nystromformer"],
    "_name_or_path",
    "architectures",
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
    kind: str  # origin, for messages
    family: Family
    architecture: str  # name of the upstream class, for messages
    model: ModelClass | None  # class of this package for that architecture
    fields: Mapping[str, Any]  # values for `NystromformerConfig`
    position_offset: int  # unused first rows of the position table
    conv_kernel_size: int  # width of the stored kernels; 0 for none
    exact_by_equality: bool = False  # exact because num_landmarks == segment_means_seq_len


def read_source(raw: Mapping[str, Any], where: Path, weights: Callable[[], Tensors]) -> Source:
    """Returns the description of a checkpoint from `raw`, a config.json in Hugging Face's layout.

    `weights` reads the tensors, to check that the section `SECTION` matches them.
    """
    files.check_is_model(raw, where)
    if "model" in raw and "model_type" not in raw:
        raise ValueError(
            f"{where} contains a config.json of the authors' code: run python -m"
            " nystromformer_jax.pretrained convert on the checkpoint next to it first."
        )
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"The config.json of {where} has an unsupported model_type,"
            f" {kind!r}{nearest(str(kind), FAMILIES)}"
        )
    values = {**_DEFAULTS, **_FAMILY_DEFAULTS[kind], **raw}
    number = functools.partial(read_number, values, where=where)
    fields: dict[str, Any] = {ours: number(name) for name, ours in SIZE_FIELDS.items()}
    fields.update({ours: number(name, kind=float) for name, ours in _FLOAT_FIELDS.items()})
    activation = values["hidden_act"]
    if not isinstance(activation, str) or activation not in _READ_ACTIVATIONS:
        raise ValueError(
            f"The config.json of {where} has an unsupported hidden_act,"
            f" {activation!r}{nearest(str(activation), _READ_ACTIVATIONS)}"
        )
    fields["activation"] = _READ_ACTIVATIONS[activation]
    fields["tie_word_embeddings"] = values["tie_word_embeddings"]
    if not isinstance(fields["tie_word_embeddings"], bool):
        raise ValueError(
            f"{where} has tie_word_embeddings = {fields['tie_word_embeddings']!r} in its config.json;"
            " it must be true or false."
        )
    labels = raw.get("id2label")
    if labels is None:
        fields["num_labels"] = number("num_labels")
    elif isinstance(labels, Mapping) and all(key.isdecimal() for key in labels):
        fields["num_labels"] = len(labels)
    else:
        raise ValueError(
            f"id2label in the config.json of {where} must give the name of each class by its number, such"
            f' as {{"0": "no", "1": "yes"}}, got {labels!r:.80}.'
        )
    fields["metadata"] = {key: raw[key] for key in raw if key not in _NOT_METADATA}
    if "problem_type" in raw and labels is None:
        # With these names, a saved model with another number of labels drops problem_type.
        fields["metadata"]["id2label"] = _default_labels(fields["num_labels"])
    if kind == "nystromformer":
        return _read_nystromformer(raw, values, where, fields, weights)
    return _read_bert(raw, kind, where, fields)


def _read_bert(raw: Mapping[str, Any], kind: str, where: Path, fields: dict[str, Any]) -> Source:
    for key, supported in (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    ):
        if raw.get(key, supported) not in (supported, None):
            raise ValueError(
                f"{where} has {key} = {raw[key]!r} in its config.json, which is unsupported:"
                f" only {key} = {supported!r}."
            )
    offset = 0
    if kind in ROBERTAS:  # its positions start after pad_token_id
        if raw.get("pad_token_id") is not None:
            read_number(raw, "pad_token_id", where)
        offset = roberta_position_offset(raw)
        fields["max_len"] -= offset
    architecture, model = _architecture(raw, kind)
    fields.update(attention="softmax", conv_kernel_size=0)
    fields.update(classifier_activation="tanh", choice_activation="tanh")
    _read_section(raw, where, fields, BERT_SECTION_FIELDS)
    # transformers copies the section to models with other heads, whose activation is always tanh.
    if model is NystromformerForSequenceClassification:
        fields["classifier_activation"] = "tanh"
    if model is NystromformerForMultipleChoice:
        fields["choice_activation"] = "tanh"
    return Source(
        where=where,
        kind=kind,
        family=FAMILIES[kind],
        architecture=architecture,
        model=model,
        fields=fields,
        position_offset=offset,
        conv_kernel_size=0,
    )


def _read_nystromformer(
    raw: Mapping[str, Any],
    values: Mapping[str, Any],
    where: Path,
    fields: dict[str, Any],
    weights: Callable[[], Tensors],
) -> Source:
    fields["num_landmarks"] = read_number(values, "num_landmarks", where)
    if values["conv_kernel_size"] is None:  # written by older versions
        values = {**values, "conv_kernel_size": 0}
    fields["conv_kernel_size"] = read_number(values, "conv_kernel_size", where)
    architecture, model = _architecture(raw, "nystromformer")
    exact = fields["num_landmarks"] == read_number(values, "segment_means_seq_len", where)
    is_stale = raw.get(SECTION) is not None and _is_stale(raw, where, weights)
    is_ours = raw.get(SECTION) is not None and not is_stale
    if is_ours:
        name = _read_section(raw, where, fields, (*SECTION_FIELDS, "conv_kernel_size"))
        if "attention" not in fields:
            raise ValueError(
                f"{SECTION} in the config.json of {where} must have the key attention."
            )
        if name:
            architecture, model = name, find_model(name)
    else:
        fields["attention"] = "softmax" if exact else "nystrom"
        fields["classifier_activation"] = None
        fields["attention_dropout_rate"] = 0.0  # Hugging Face never applies it
        if is_stale:
            fields["pinv_start"] = "batch_max"  # the weights were trained with it
    has_kernels = not is_ours or has_convolution(fields["attention"], fields["conv_kernel_size"])
    return Source(
        where=where,
        kind="nystromformer_jax" if is_ours else "Hugging Face's Nyströmformer",
        family=FAMILIES["nystromformer"],
        architecture=architecture,
        model=model,
        fields=fields,
        position_offset=POSITION_OFFSET,
        conv_kernel_size=fields["conv_kernel_size"] if has_kernels else 0,
        exact_by_equality=exact and not is_ours,
    )


def _read_section(
    raw: Mapping[str, Any], where: Path, fields: dict[str, Any], known: tuple[str, ...]
) -> str:
    """Updates `fields` from the section `SECTION`; returns the name of the model class in it."""
    section = raw.get(SECTION)
    if section is None:
        return ""
    if not isinstance(section, Mapping):
        raise ValueError(
            f"{SECTION} in the config.json of {where} must be a JSON object, got {section}."
        )
    defaults = {field.name: field.default for field in dataclasses.fields(NystromformerConfig)}
    for key, value in section.items():
        if key in ("model_class", WEIGHTS_HASH):
            continue
        if key not in known:
            raise ValueError(
                f"The config.json of {where} has the unknown key {SECTION}.{key}{nearest(key, known)} A"
                " newer version of this package may have written it."
            )
        if type(value) is not type(defaults[key]) and key != "classifier_activation":
            raise ValueError(
                f"{SECTION}.{key} in the config.json of {where} must be of type"
                f" {type(defaults[key]).__name__}, got {value!r}."
            )
        fields[key] = value
    return str(section.get("model_class", ""))


def _is_stale(raw: Mapping[str, Any], where: Path, weights: Callable[[], Tensors]) -> bool:
    """Returns True, with a warning, if the weights have changed since the section was written.

    transformers copies the section unchanged when it saves a trained model.
    """
    section = raw[SECTION]
    if not isinstance(section, Mapping):
        return False
    expected = section.get(WEIGHTS_HASH)
    if expected is None:  # written by an older version
        is_stale = "transformers_version" in raw
    else:
        try:
            is_stale = fingerprint(weights()) != expected
        except FileNotFoundError:  # the folder has no weights
            return False
    if is_stale:
        warnings.warn(
            f"{where} has a section {SECTION} in its config.json, but its weights have changed since"
            " that was written. The section is ignored, and the model computes what transformers"
            " computes. If the weights were changed by other means than training in transformers,"
            " pass attention, conv_kernel_size and classifier_activation yourself.",
            UpstreamMismatchWarning,
            stacklevel=5,
        )
    return is_stale


def fingerprint(tensors: Tensors) -> str:
    """Returns the SHA-256 of the weights of a Nyströmformer in Hugging Face's layout.

    The hash does not depend on the order of the tensors, a tied decoder, buffers, or a dtype that
    represents the same values.
    """
    family = FAMILIES["nystromformer"]
    named = {family.canonical(name): tensor for name, tensor in tensors.items()}
    named.setdefault("cls.predictions.bias", np.zeros(0))
    if f"{family.decoder}.bias" in named:  # then transformers uses this one
        named["cls.predictions.bias"] = named.pop(f"{family.decoder}.bias")
    decoder = named.get(f"{family.decoder}.weight")
    words = named.get(f"{family.prefix}embeddings.word_embeddings.weight")
    if decoder is not None and words is not None and np.array_equal(decoder, words):
        del named[f"{family.decoder}.weight"]
    digest = hashlib.sha256()
    for name, tensor in sorted(named.items()):
        if re.fullmatch(r"(.+\.)?embeddings\.(position|token_type)_ids", name):
            continue
        digest.update(f"{name} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor, np.float32).data)
    return digest.hexdigest()


def roberta_position_offset(raw: Mapping[str, Any]) -> int:
    """Returns the index of the first position in RoBERTa's position table."""
    padding = raw.get("pad_token_id")
    return 1 + (1 if padding is None else int(padding))


def has_convolution(attention: str, conv_kernel_size: int) -> bool:
    """Returns True if a model with this attention has convolution kernels."""
    return attention in ("nystrom", "softmax") and conv_kernel_size > 0


def _architecture(raw: Mapping[str, Any], kind: str) -> tuple[str, ModelClass | None]:
    """Returns the first of `architectures`, and the model class of that name or None."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names:
        return "", None
    name = str(names[0])
    match = re.fullmatch(rf"{FAMILIES[kind].classes}(Model|For\w+)", name)
    if match is None:
        return name, None
    return name, MODELS.get("Nystromformer" + match[1].removeprefix("Model"))


def read_number(config: Mapping[str, Any], key: str, where: Path, kind: type = int) -> Any:
    """Returns `config[key]`, a finite number of type `kind`; raises ValueError for anything else."""
    value = config.get(key)
    is_number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(
            f"{where} has {key} = {value!r} in its config.json; it must be"
            f" {'an integer' if kind is int else 'a finite number'}."
        )
    return kind(value)


def layout_of(model: ModelClass, config: NystromformerConfig) -> str:
    """Returns the key in `names.FAMILIES` of the layout that `save_pretrained` writes.

    A model with softmax attention and no convolution is equivalent to BERT or RoBERTa, unless its head
    has an activation that only Nyströmformer has.
    """
    is_bert = config.attention == "softmax" and config.conv_kernel_size == 0
    if not is_bert or _head_activations(model, config)[0] != "tanh":
        return "nystromformer"
    kind = str(config.metadata.get("model_type"))
    # RoBERTa has no sentence-order head, and the activation of its head for masked tokens is fixed.
    fits_roberta = model not in TOKEN_HEADS or (
        model is not NystromformerForPreTraining and config.activation == "gelu"
    )
    return kind if kind in ROBERTAS and fits_roberta else "bert"


def _head_activations(model: ModelClass, config: NystromformerConfig) -> tuple[str, str]:
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
    label_names = more.get("id2label")
    if label_names is not None and len(label_names) != config.num_labels:
        raise ValueError(
            f"id2label must name the {config.num_labels} labels of the model, got {len(label_names)}"
            " names."
        )
    if label_names is not None and "label2id" not in more:
        label2id = {str(label): int(number) for number, label in label_names.items()}
        more = {**more, "label2id": label2id}
    layout = layout_of(model, config)
    head = "Model" if model is Nystromformer else model.__name__.removeprefix("Nystromformer")
    names = SECTION_FIELDS if layout == "nystromformer" else BERT_SECTION_FIELDS
    section = {name: getattr(config, name) for name in names}
    fields = {
        **_metadata(config, layout),
        **more,
        "model_type": layout,
        **{name: getattr(config, ours) for name, ours in {**SIZE_FIELDS, **_FLOAT_FIELDS}.items()},
        "hidden_act": _WRITTEN_ACTIVATIONS[config.activation],
        "tie_word_embeddings": config.tie_word_embeddings,
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
    if layout in ROBERTAS:
        fields["max_position_embeddings"] += roberta_position_offset(fields)
    return {**fields, "architectures": [FAMILIES[layout].classes + head], SECTION: section}


def _default_labels(count: int) -> dict[str, str]:
    return {str(i): f"LABEL_{i}" for i in range(count)}


def _metadata(config: NystromformerConfig, layout: str) -> dict[str, Any]:
    """Returns the metadata with a label for every class and the special-token ids of `layout`."""
    metadata = dict(config.metadata)
    source = metadata.get("model_type", layout)
    if source != layout:
        metadata = {**_TOKEN_IDS.get(source, {}), **metadata}
    labels = metadata.get("id2label")
    if isinstance(labels, Mapping) and len(labels) != config.num_labels:  # of another head
        metadata.pop("problem_type", None)
        labels = None
    if not isinstance(labels, Mapping):
        labels = _default_labels(config.num_labels)
        metadata = {**metadata, "id2label": labels, "label2id": None}
    if not isinstance(metadata.get("label2id"), Mapping):
        metadata["label2id"] = {str(label): int(number) for number, label in labels.items()}
    return metadata


def differences_upstream(model: ModelClass, config: NystromformerConfig) -> list[str]:
    """Returns why the outputs of a saved model differ in transformers on unpadded input."""
    differences = []
    if config.attention == "nystrom":
        differences.append(
            f"it runs landmark attention only on unpadded inputs of exactly {config.max_len} tokens"
            if config.max_len % config.num_landmarks == 0
            else f"it cannot run landmark attention, because max_len={config.max_len} is not a multiple of"
            f" num_landmarks={config.num_landmarks}"
        )
        if config.pinv_start != "batch_max" or config.pinv_iters != 6:  # also the ridge inverse
            differences.append(
                "its pseudoinverse takes 6 iterations and is scaled by one maximum over the batch"
            )
        if config.landmark_selection != "segments":
            differences.append("its landmarks are means of segments, not of clusters")
        if config.normalize_rows:
            differences.append("its rows are not normalized")
    elif config.attention != "softmax":
        differences.append(f"it has no {config.attention} attention and runs exact attention")
    ours, theirs = _head_activations(model, config)
    if layout_of(model, config) == "nystromformer" and ours != theirs:
        differences.append(
            f"its classifier has {_WRITTEN_ACTIVATIONS[theirs]} between its layers where this one"
            f" has {ours}"
        )
    return differences
