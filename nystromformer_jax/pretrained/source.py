"""What a config.json says about the weights beside it."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.models import Nystromformer, NystromformerConfig
from nystromformer_jax.pretrained.names import FAMILIES, MODELS, Family, Model, find_model
from nystromformer_jax.spelling import nearest

OUR_KEY = "nystromformer_jax"
# Of `NystromformerConfig`, what Hugging Face's has no name for; beside these the head's class.
OUR_FIELDS = (
    "attention",
    "pinv_iters",
    "pinv_start",
    "landmark_layout",
    "mask_conv",
    "implementation",
    "classifier_activation",
)
ROWS_IN_FRONT = 2  # of Hugging Face's Nyströmformer's position table, unused

# Their name to ours.
SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embed_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "intermediate_size": "mlp_dim",
    "type_vocab_size": "num_types",
    "max_position_embeddings": "max_len",
}
NUMBERS = {
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "layer_norm_epsilon",
    "initializer_range": "initializer_range",
}
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
}

# What a key that is not there stands for (transformers 5.23).
_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
_OWN_DEFAULTS: dict[str, dict[str, Any]] = {
    "nystromformer": {
        "vocab_size": 30_000,
        "max_position_embeddings": 510,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "segment_means_seq_len": 64,
        "num_landmarks": 64,
        "conv_kernel_size": 65,
    },
    "bert": {
        "vocab_size": 30_522,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
    "roberta": {
        "vocab_size": 50_265,
        "max_position_embeddings": 512,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    },
}


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights before they are read.

    Attributes:
      where: For messages.
      kind: For messages: whose they are.
      family: How their tensors are named.
      head: What they are called there, for messages, and the model of ours that this is; None where
        there is none.
      fields: Of `NystromformerConfig`.
      rows_in_front: Of the position table.
      conv_kernel_size: Of the kernels among the tensors, 0 for none.
      exact_by_equality: Whether upstream's attention is exact because two numbers are equal.
    """

    where: Path
    kind: str
    family: Family
    head: str
    model: Model | None
    fields: Mapping[str, Any]
    rows_in_front: int
    conv_kernel_size: int
    exact_by_equality: bool = False


def read_source(raw: Mapping[str, Any], where: Path) -> Source:
    """Translates a config.json of Hugging Face's, or one of ours, which is in its layout.

    Raises:
      ValueError: Another model, or one whose numbers ours would not give.
    """
    if "model" in raw and "model_type" not in raw:
        raise ValueError(
            f"{where} holds a config.json of the authors' code: run python -m"
            " nystromformer_jax.pretrained convert on the checkpoint beside it first."
        )
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ValueError(
            f"{where} has model_type {kind!r} in its config.json{nearest(str(kind), FAMILIES)}"
        )
    values = _Values({**_DEFAULTS, **_OWN_DEFAULTS[kind], **raw}, where)
    fields: dict[str, Any] = {ours: values.whole(theirs) for theirs, ours in SIZES.items()}
    fields.update({ours: values.number(theirs) for theirs, ours in NUMBERS.items()})
    activation = raw.get("hidden_act", values.raw["hidden_act"])
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{where} has hidden_act {activation!r}{nearest(str(activation), _ACTIVATIONS)}"
        )
    fields["activation"] = _ACTIVATIONS[activation]
    fields["num_labels"] = _num_labels(raw, values)
    if kind == "nystromformer":
        return _nystromformer(raw, values, fields)
    for key, usual in (
        ("is_decoder", False),
        ("add_cross_attention", False),
        ("position_embedding_type", "absolute"),
    ):
        if raw.get(key, usual) not in (usual, None):
            raise ValueError(
                f"{where} has {key} = {raw[key]!r} in its config.json; this model has no such"
                f" attention, only {key} = {usual!r}."
            )
    rows = 0
    if kind == "roberta":  # its first token stands at the row behind the padding token's
        rows = 1 + (1 if raw.get("pad_token_id") is None else values.whole("pad_token_id"))
        fields["max_len"] -= rows
    fields.update(attention="softmax", conv_kernel_size=0, classifier_activation="tanh")
    head, model = _head(raw, {"bert": "Bert", "roberta": "Roberta"}[kind])
    name = {"bert": "BERT", "roberta": "RoBERTa"}[kind]
    return Source(where, name, FAMILIES[kind], head, model, fields, rows, 0)


def _nystromformer(raw: Mapping[str, Any], values: "_Values", fields: dict[str, Any]) -> Source:
    fields["num_landmarks"] = values.whole("num_landmarks")
    none = values.raw["conv_kernel_size"] is None  # as older versions could write
    fields["conv_kernel_size"] = 0 if none else values.whole("conv_kernel_size")
    head, model = _head(raw, "Nystromformer")
    ours = raw.get(OUR_KEY)
    exact = fields["num_landmarks"] == values.whole("segment_means_seq_len")
    if ours is None:
        fields["attention"] = "softmax" if exact else "nystrom"
        fields["classifier_activation"] = None
        fields["attention_dropout_rate"] = 0.0  # theirs is read and never applied
        return Source(
            values.where,
            "Hugging Face's Nyströmformer",
            FAMILIES["nystromformer"],
            head,
            model,
            fields,
            ROWS_IN_FRONT,
            fields["conv_kernel_size"],
            exact_by_equality=exact,
        )
    if not isinstance(ours, Mapping):
        raise ValueError(f"{values.where} has a {OUR_KEY} in its config.json that is no section.")
    defaults = {field.name: field.default for field in dataclasses.fields(NystromformerConfig)}
    for key, value in ours.items():
        if key == "model_class":
            head, model = str(value), find_model(str(value))
            continue
        if key not in (*OUR_FIELDS, "conv_kernel_size"):
            raise ValueError(
                f"{values.where} has {OUR_KEY}.{key} in its config.json"
                f"{nearest(key, OUR_FIELDS)} A newer version may have written it."
            )
        if type(value) is not type(defaults[key]) and key != "classifier_activation":
            raise ValueError(
                f"{values.where} has {OUR_KEY}.{key} = {value!r} in its config.json, which needs"
                f" a value like {defaults[key]!r}."
            )
        fields[key] = value
    kernels = has_convolution(fields["attention"], fields["conv_kernel_size"])
    return Source(
        values.where,
        "nystromformer_jax",
        FAMILIES["nystromformer"],
        head,
        model,
        fields,
        ROWS_IN_FRONT,
        fields["conv_kernel_size"] if kernels else 0,
    )


def has_convolution(attention: str, conv_kernel_size: int) -> bool:
    """Whether a model of such an attention holds kernels."""
    return attention in ("nystrom", "softmax") and conv_kernel_size > 0


def _head(raw: Mapping[str, Any], prefix: str) -> tuple[str, Model | None]:
    """The first of `architectures`, and our model of the same name where there is one."""
    names = raw.get("architectures")
    if not isinstance(names, list) or not names:
        return "", None
    name = str(names[0])
    match = re.fullmatch(rf"{prefix}(Model|For\w+)", name)
    if match is None:
        return name, None
    if match[1] == "Model":
        return name, Nystromformer
    return name, MODELS.get(f"Nystromformer{match[1]}")


def _num_labels(raw: Mapping[str, Any], values: "_Values") -> int:
    if isinstance(raw.get("id2label"), Mapping):
        return len(raw["id2label"])
    return values.whole("num_labels") if "num_labels" in raw else 2


@dataclasses.dataclass(frozen=True)
class _Values:
    """A config.json that says in words what it lacks."""

    raw: Mapping[str, Any]
    where: Path

    def whole(self, key: str) -> int:
        value = self.raw[key]
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str) -> float:
        value = self.raw[key]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(key, "a number")
        return float(value)

    def _wrong(self, key: str, needed: str) -> ValueError:
        return ValueError(
            f"{self.where} has {key} = {self.raw[key]!r} in its config.json, which needs {needed}."
        )
