"""Describes checkpoints of the authors' BERT code."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from nystromformer_jax.backbone import Nystromformer
from nystromformer_jax.models import (
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained.config_json import Source, read_number
from nystromformer_jax.pretrained.names import AUTHORS, Family, ModelClass, tensor_name

Tensors = dict[str, npt.NDArray[Any]]


def read_authors_source(
    raw: Mapping[str, Any], tensors: Tensors, where: Path
) -> tuple[Source, Tensors]:
    """Returns the description and the tensors of a checkpoint of the authors' BERT code.

    `raw` is the authors' config.json; sizes are read from the tensors instead. Tensor names are returned
    without the prefixes of wrappers.

    Source: mlpen/Nystromformer at 5689313, code/ and reorganized_code/.
    Differs: num_landmarks is the smaller of num_landmarks and seq_len, because nystrom-512/config.json
    has the two swapped.
    """
    tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    if any(name.startswith("seq_classifer.") for name in tensors):
        raise ValueError(
            f"{where} is a checkpoint of the authors' Long Range Arena code: read it with"
            " lra.pretrained.load_authors_checkpoint, from a clone of this repository."
        )
    config = raw.get("model")
    words = tensors.get("model.embeddings.word_embeddings.weight")
    positions = tensors.get("model.embeddings.position_embeddings.weight")
    types = tensors.get("model.embeddings.token_type_embeddings.weight")
    if not isinstance(config, dict) or words is None or positions is None or types is None:
        raise ValueError(
            f"{where} with the config.json next to it is not a checkpoint in Hugging Face's layout, and not"
            " one of the authors' BERT code (code/ or reorganized_code/ of mlpen/Nystromformer)."
        )
    names = {
        layout: f"model.{tensor_name('encoder/layer_0/attention/query/kernel', family.modules)}"
        for layout, family in AUTHORS.items()
    }
    layout = next((layout for layout, name in names.items() if name in tensors), None)
    if layout is None:
        raise ValueError(f"The layer names in {where} match none of the authors' codes.")
    attention_dim, dim = tensors[names[layout]].shape
    if words.shape[1] != dim:
        raise ValueError(
            f"{where} has embeddings of width {words.shape[1]} (embedding_dim) and layers of width"
            f" {dim} (transformer_dim, or dim); they must be equal in this model."
        )
    if attention_dim != dim:
        raise ValueError(
            f"{where} has num_head times head_dim = {attention_dim} and layers of width {dim}; they"
            " must be equal in this model."
        )
    family, model, tensors = _head(AUTHORS[layout], tensors)
    offset = len(positions) - read_number(config, "max_seq_len", where)
    if offset not in (0, 2):
        raise ValueError(
            f"{where} must have max_seq_len = {config['max_seq_len']} positions, as in its config.json,"
            f" or 2 more; it has {len(positions)}."
        )
    mlp_name = f"model.{tensor_name('encoder/layer_0/mlp/hidden/kernel', AUTHORS[layout].modules)}"
    if mlp_name not in tensors:
        raise ValueError(f"{where} has no tensor {mlp_name}, so it is incomplete.")
    fields = {
        "vocab_size": len(words),
        "max_len": len(positions) - offset,
        "embed_dim": words.shape[1],
        "num_layers": read_number(config, "num_layers", where),
        "num_heads": read_number(config, "num_head", where),
        "mlp_dim": len(tensors[mlp_name]),
        "num_types": len(types),
        "activation": "gelu_tanh" if layout == "code" else "gelu",
        "dropout_rate": read_number(config, "dropout_prob", where, float),
        "attention_dropout_rate": read_number(config, "dropout_prob", where, float),
        "classifier_activation": "tanh",
        **_attention(config, where),
    }
    output = tensors.get("sen_classifer.classifer.bias", tensors.get("sen_class.bias"))
    if output is not None:
        fields["num_labels"] = len(output)
    source = Source(
        where=where,
        kind="the authors' BERT",
        family=family,
        architecture=model.__name__ if model else "",
        model=model,
        fields=fields,
        position_offset=offset,
        conv_kernel_size=fields["conv_kernel_size"],
        exact_by_equality=fields["attention"] == "softmax" and "num_landmarks" in fields,
    )
    return source, tensors


def _head(family: Family, tensors: Tensors) -> tuple[Family, ModelClass | None, Tensors]:
    """Returns family, class and tensors of the model, detected from the tensor names."""
    if "sen_classifer.dense.weight" in tensors:
        return family, NystromformerForSequenceClassification, tensors
    if "qahead.weight" in tensors:
        questions = len(tensors["qahead.weight"]) == 2  # 1 in WikiHop checkpoints
        return family, NystromformerForQuestionAnswering if questions else None, tensors
    if "sen_class.weight" in tensors:
        # `sen_class` was trained on sentence order and then on GLUE; it has unused classes.
        heads = {
            **family.heads,
            NystromformerForPreTraining: {
                **family.heads[NystromformerForPreTraining],
                "sentence_order": "sen_class.order",
            },
            NystromformerForSequenceClassification: {
                "dense": "model.pooler",
                "output": "sen_class",
            },
        }
        first_two = {
            f"sen_class.order.{leaf}": tensors[f"sen_class.{leaf}"][:2]
            for leaf in ("weight", "bias")
            if f"sen_class.{leaf}" in tensors
        }
        family = dataclasses.replace(family, heads=heads)
        return family, NystromformerForPreTraining, {**tensors, **first_two}
    if "mlm.dense.weight" in tensors:
        return family, NystromformerForMaskedLM, tensors
    return family, Nystromformer, tensors


def _attention(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Returns the fields of `NystromformerConfig` that describe the attention."""
    name = config.get("attn_type", "softmax")  # vanila_transformer supports only softmax
    if name == "softmax":
        return {"attention": "softmax", "conv_kernel_size": 0}
    if name != "nystrom":
        raise ValueError(
            f"{where} has attn_type {name!r} in its config.json; only softmax and nystrom are supported."
        )
    landmarks = read_number(config, "num_landmarks", where)
    length = read_number(config, "seq_len" if "seq_len" in config else "max_seq_len", where)
    return {
        "attention": "softmax" if landmarks == length else "nystrom",
        "num_landmarks": min(landmarks, length),
        "conv_kernel_size": read_number(
            {"conv_kernel_size": 0, **config}, "conv_kernel_size", where
        ),
    }
