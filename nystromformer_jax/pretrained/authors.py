"""Checkpoints that PyTorch pickled, the authors' own among them."""

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nystromformer_jax.models import (
    Nystromformer,
    NystromformerForMaskedLM,
    NystromformerForPreTraining,
    NystromformerForQuestionAnswering,
    NystromformerForSequenceClassification,
)
from nystromformer_jax.pretrained.names import AUTHORS, Family, Model
from nystromformer_jax.pretrained.source import Source

Tensors = dict[str, npt.NDArray[Any]]


def read_torch(path: Path) -> Tensors:
    """The tensors of a pickled state dict, or of a checkpoint around one; floats in float32.

    Nothing that a pickle could run is run.

    Raises:
      FileNotFoundError: No such file.
      ValueError: A damaged file, one that holds more than tensors and plain values, or no tensors.
      ImportError: Without the package torch.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"{path} was written by PyTorch, and the package torch is not installed: pip install"
            ' torch, or the extra "peers".'
        ) from None
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ValueError(
            f"{path} is no file of torch's, is damaged, or holds more than tensors and plain values,"
            " which only running it would read."
        ) from None
    except PermissionError:
        raise
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError):
        raise ValueError(f"{path} is cut short or damaged: download it again.") from None
    for key in ("model_state_dict", "state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    tensors = {}
    for name, tensor in found.items() if isinstance(found, dict) else ():
        if isinstance(tensor, torch.Tensor):
            plain = tensor.detach()
            tensors[str(name)] = (plain.float() if plain.is_floating_point() else plain).numpy()
    if not tensors:
        raise ValueError(f"{path} holds no state dict, which maps names to tensors.")
    return tensors


def read_source(raw: Mapping[str, Any], tensors: Tensors, where: Path) -> tuple[Source, Tensors]:
    """What a checkpoint of the authors' BERT codes holds; sizes are the tensors' own.

    Source: mlpen/Nystromformer at 5689313, code/ and reorganized_code/.
    Differs: nystrom-512/config.json has num_landmarks and seq_len the wrong way round, with which
    that code cannot run; the smaller of the two is taken for the landmarks.

    Args:
      raw: Their config.json.
      tensors: By the names in the file.
      where: The file, for messages.

    Returns:
      The source, and the tensors under names without wrappers.

    Raises:
      ValueError: A model that ours cannot be.
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
            f"{where} with the config.json beside it is no checkpoint of Hugging Face's layouts nor"
            " of the authors' BERT code (code/ or reorganized_code/ of mlpen/Nystromformer)."
        )
    layout = _layout(tensors, where)
    _check_widths(tensors, layout, words.shape[1], where)
    family, model, tensors = _head(AUTHORS[layout], tensors)
    rows = len(positions) - _value(config, "max_seq_len", where)
    if rows not in (0, 2):
        raise ValueError(
            f"{where} has {len(positions)} positions, and max_seq_len = {config['max_seq_len']} in"
            " its config.json; needed are as many, or 2 more."
        )
    mlp_name = family.modules["encoder/layer_{i}/mlp/hidden"].format(i=0)
    fields = {
        "vocab_size": len(words),
        "max_len": len(positions) - rows,
        "embed_dim": words.shape[1],
        "num_layers": _value(config, "num_layers", where),
        "num_heads": _value(config, "num_head", where),
        "mlp_dim": len(_needed(tensors, f"model.{mlp_name}.weight", where)),
        "num_types": len(types),
        "activation": "gelu_tanh" if layout == "code" else "gelu",
        "dropout_rate": _value(config, "dropout_prob", where, float),
        "attention_dropout_rate": _value(config, "dropout_prob", where, float),
        "classifier_activation": "tanh",
        **_attention(config, where),
    }
    output = tensors.get("sen_classifer.classifer.bias", tensors.get("sen_class.bias"))
    if output is not None:
        fields["num_labels"] = len(output)
    source = Source(
        where,
        "the authors' BERT",
        family,
        model.__name__ if model else "",
        model,
        fields,
        rows,
        fields["conv_kernel_size"],
        exact_by_equality=fields["attention"] == "softmax" and "num_landmarks" in fields,
    )
    return source, tensors


def _layout(tensors: Tensors, where: Path) -> str:
    """The key in `AUTHORS`."""
    for layout, family in AUTHORS.items():
        query = family.modules["encoder/layer_{i}/attention/query"].format(i=0)
        if f"model.{query}.weight" in tensors:
            return layout
    raise ValueError(f"{where} has no layers under any name that the authors' codes have.")


def _head(family: Family, tensors: Tensors) -> tuple[Family, Model | None, Tensors]:
    """The model that the tensors' names tell."""
    if "sen_classifer.dense.weight" in tensors:
        return family, NystromformerForSequenceClassification, tensors
    if "qahead.weight" in tensors:
        questions = len(tensors["qahead.weight"]) == 2  # WikiHop has 1
        return family, NystromformerForQuestionAnswering if questions else None, tensors
    if "sen_class.weight" in tensors:
        # Trained on the order of sentences, then on GLUE, with classes to spare for that.
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


def _check_widths(tensors: Tensors, layout: str, embedding_dim: int, where: Path) -> None:
    """Refuses widths that differ where ours are one."""
    query = AUTHORS[layout].modules["encoder/layer_{i}/attention/query"].format(i=0)
    attention_dim, dim = tensors[f"model.{query}.weight"].shape
    if embedding_dim != dim:
        raise ValueError(
            f"{where} has embeddings of {embedding_dim} (embedding_dim) in layers of {dim}"
            " (transformer_dim, or dim); this model has one width for both."
        )
    if attention_dim != dim:
        raise ValueError(
            f"{where} has heads of {attention_dim} together (num_head times head_dim) in layers of"
            f" {dim}; in this model the two are equal."
        )


def _attention(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Our fields of attention."""
    name = config.get("attn_type", "softmax")  # vanila_transformer has no other
    if name == "softmax":
        return {"attention": "softmax", "conv_kernel_size": 0}
    if name != "nystrom":
        raise ValueError(
            f"{where} has attn_type {name!r} in its config.json; only softmax and nystrom are read."
        )
    landmarks = _value(config, "num_landmarks", where)
    length = _value(config, "seq_len" if "seq_len" in config else "max_seq_len", where)
    return {
        "attention": "softmax" if landmarks == length else "nystrom",
        "num_landmarks": min(landmarks, length),
        "conv_kernel_size": _value({"conv_kernel_size": 0, **config}, "conv_kernel_size", where),
    }


def _needed(tensors: Tensors, name: str, where: Path) -> npt.NDArray[np.generic]:
    if name not in tensors:
        raise ValueError(f"{where} does not hold {name}.")
    return tensors[name]


def _value(config: Mapping[str, Any], key: str, where: Path, kind: type = int) -> Any:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise ValueError(
            f"{where} has {key} = {value!r} in the section model of its config.json, which needs a"
            f"{' whole' if kind is int else ''} number."
        )
    return value
