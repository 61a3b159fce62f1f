"""Reads models from folders, and writes them: `from_pretrained` and `save_pretrained`."""

import dataclasses
import functools
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn

from nystromformer_jax.models import DtypeName, NystromformerConfig
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.config_json import (
    POSITION_OFFSET,
    SECTION,
    WEIGHTS_HASH,
    Source,
    UpstreamMismatchWarning,
    differences_upstream,
    fingerprint,
    read_source,
    roberta_position_offset,
    write_config,
)
from nystromformer_jax.pretrained.names import FAMILIES, MODELS, Model
from nystromformer_jax.pretrained.tensors import read_params, write_tensors
from nystromformer_jax.spelling import nearest

Quirks = Literal["none", "hf"]
QUIRKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "hf": {"landmark_layout": "hf", "pinv_start": "batch_max", "mask_conv": False},
}
# Fields that cannot be changed, but for fewer layers, which are the first ones.
FIXED_BY_WEIGHTS = {"vocab_size", "embed_dim", "num_heads", "mlp_dim", "num_types", "num_layers"}
NEW_CONV_KERNEL_SIZE = 33  # the authors' size at 512 tokens


class ExactAttentionWarning(UserWarning):
    """A checkpoint of a linear-time model whose upstream code runs attention in quadratic time."""


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    model_class: Model | None = None,
    quirks: Quirks = "none",
    dtype: DtypeName = "float32",
    seed: int = 0,
    **changes: Any,
) -> tuple[Any, dict[str, Any]]:
    """Returns a model and its variables from a folder in Hugging Face's layout.

        model, variables = from_pretrained(folder, attention="nystrom", max_len=4096)
        logits = model.apply(variables, inputs, mask=mask, deterministic=True)

    Supported are Nyströmformer, BERT and RoBERTa, in safetensors of one file or several, in float16,
    bfloat16 or float32. Parameters become float32. Without changes the model computes the same as
    upstream on unpadded input: BERT and RoBERTa have attention="softmax" and no convolution. A
    Nyströmformer whose num_landmarks equals segment_means_seq_len has attention="softmax" and its
    convolution, with a warning. In landmark attention our pseudoinverse starts from each matrix's own
    norms and upstream's from one maximum over the batch, unless quirks="hf".

    Some changes do more than set a field:

    - attention="nystrom" gives BERT and RoBERTa convolutions of 33 zeros, which change nothing until
      they are trained. A larger conv_kernel_size than the checkpoint's pads its kernels with zeros, 0
      drops them, and a smaller one is an error.
    - max_len repeats the position table, or cuts it.
    - model_class and num_labels may need a head that is not in the folder. It is initialized from
      `seed`. All other tensors that are missing or have wrong shapes are an error.
    - A smaller num_layers than the checkpoint's takes the first layers.

    Unused tensors are ignored: other heads, poolers and buffers without a message, others with one
    log line.

    Args:
      folder: Holds config.json and model.safetensors.
      model_class: A class of `nystromformer_jax.models`; None: the class that config.json names.
      quirks: "hf" treats padding and batches as Hugging Face's code does.
      dtype: Dtype of activations, which is not saved with a model.
      seed: Seed of parameters that the folder lacks.
      **changes: Fields of `NystromformerConfig`.

    Raises:
      FileNotFoundError: The folder, config.json or the weights are missing.
      ValueError: A corrupt file, an unsupported model, tensors that do not fit, or an unknown change.
      ImportError: The package safetensors is not installed.
    """
    folder = Path(folder)
    weights = functools.cache(lambda: files.read_weights(folder))
    source = read_source(files.read_config_file(folder), folder, weights)
    model = make_model(source, model_class, quirks, {**changes, "dtype": dtype})
    other_labels = "num_labels" in changes
    params = read_params(model, source, weights(), seed=seed, other_labels=other_labels)
    _warn_of_exact_attention(source, changes)
    return model, {"params": params}


def read_config(
    folder: str | os.PathLike[str],
    *,
    quirks: Quirks = "none",
    dtype: DtypeName = "float32",
    **changes: Any,
) -> NystromformerConfig:
    """Returns the config of the model that `from_pretrained` returns for the same arguments.

    Weights are read only to check that our section of config.json describes them.

    Raises:
      FileNotFoundError: The folder or config.json is missing.
      ValueError: A corrupt file, an unsupported model, or an unknown change.
    """
    folder = Path(folder)
    weights = functools.partial(files.read_weights, folder)
    source = read_source(files.read_config_file(folder), folder, weights)
    config = make_config(source, quirks, {**changes, "dtype": dtype})
    _warn_of_exact_attention(source, changes)
    return config


def save_pretrained(
    folder: str | os.PathLike[str],
    model: nn.Module,
    variables: Mapping[str, Any],
    *,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Writes config.json and model.safetensors in a layout that `transformers` loads.

    A model with softmax attention and no convolution is written as a BERT, or as a RoBERTa if it was
    read from one. All others are written as a Nyströmformer. With attention="softmax", `transformers`
    computes the same logits. With attention="nystrom" segment_means_seq_len is max_len, and the landmark
    attention of `transformers` runs only on unpadded inputs of exactly that length. An
    `UpstreamMismatchWarning` lists the differences on unpadded input.

    Fields that `transformers` has no name for are in the section "nystromformer_jax" of config.json, so
    that `from_pretrained` returns an equal config (except dtype, sequence_axis and remat) and the same
    bits. For a Nyströmformer the section holds a hash of the weights: after they were trained in
    `transformers`, `from_pretrained` ignores the section with a warning.

    Each file is replaced atomically.

    Args:
      folder: Created if missing.
      model: A model of `nystromformer_jax.models`.
      variables: Result of `model.init`: {"params": …}.
      more: Other fields of config.json, such as the tokenizer's `pad_token_id`.

    Raises:
      ValueError: An unsupported model, or parameters that do not fit it.
      ImportError: The package safetensors is not installed.
    """
    if type(model) not in MODELS.values():
        raise ValueError(
            f"save_pretrained takes one of {', '.join(MODELS)}, got a {type(model).__name__}."
        )
    if "params" not in variables:
        raise ValueError(
            'save_pretrained takes variables as model.init gives them, {"params": …}; got'
            f" {', '.join(map(repr, variables)) or 'nothing'}."
        )
    config: NystromformerConfig = model.config
    fields = write_config(type(model), config, more or {})
    layout = fields["model_type"]
    offset = {
        "nystromformer": POSITION_OFFSET,
        "bert": 0,
        "roberta": roberta_position_offset(fields),
    }[layout]
    tensors = write_tensors(model, variables["params"], layout, offset)
    if layout == "nystromformer":
        fields[SECTION][WEIGHTS_HASH] = fingerprint(tensors)
    files.write_folder(Path(folder), fields, tensors)
    if differences := differences_upstream(type(model), config):
        warnings.warn(
            f"transformers reads {folder}, but {'; '.join(differences)}.",
            UpstreamMismatchWarning,
            stacklevel=2,
        )


def make_config(source: Source, quirks: str, changes: Mapping[str, Any]) -> NystromformerConfig:
    """Returns the config that `source` describes, with changes."""
    if quirks not in QUIRKS:
        raise ValueError(f"Unknown quirks {quirks!r}{nearest(quirks, QUIRKS)}")
    known = {field.name for field in dataclasses.fields(NystromformerConfig)}
    for name in changes:
        if name not in known:
            raise ValueError(f"NystromformerConfig has no field {name!r}{nearest(name, known)}")
    fields = {**source.fields, **QUIRKS[quirks], **changes}
    # BERT, RoBERTa and the authors' softmax models get a new convolution with Nyström attention.
    is_foreign = source.family is not FAMILIES["nystromformer"]
    is_converted = (source.fields["attention"], fields["attention"]) == ("softmax", "nystrom")
    width = source.conv_kernel_size
    if is_foreign and is_converted and not width and "conv_kernel_size" not in changes:
        fields["conv_kernel_size"] = NEW_CONV_KERNEL_SIZE
    if 0 < fields["conv_kernel_size"] < width:
        raise ValueError(
            f"conv_kernel_size={fields['conv_kernel_size']} would cut the kernels of"
            f" {source.where}, which are {width} wide: pass {width} or more, or 0 for none."
        )
    config = NystromformerConfig(**fields)
    for name in changes.keys() & FIXED_BY_WEIGHTS:
        value, expected = getattr(config, name), source.fields[name]
        if value != expected and not (name == "num_layers" and value < expected):
            raise ValueError(
                f"{name}={value} was passed, and the weights of {source.where} have {expected}: leave"
                f" {name} out."
            )
    return config


def make_model(
    source: Source, model_class: Model | None, quirks: str, changes: Mapping[str, Any]
) -> Any:
    """Returns the model that `source` describes, with changes."""
    if model_class is not None and model_class not in MODELS.values():
        raise ValueError(f"model_class must be one of {', '.join(MODELS)}, got {model_class!r}.")
    return (model_class or _default_model(source))(make_config(source, quirks, changes))


def _warn_of_exact_attention(source: Source, changes: Mapping[str, Any]) -> None:
    """Warns if the source's attention is exact only because two numbers are equal."""
    if not source.exact_by_equality or "attention" in changes:
        return
    landmarks = source.fields["num_landmarks"]
    warnings.warn(
        f"{source.where} has num_landmarks = segment_means_seq_len = {landmarks}; where the two are"
        " equal, Hugging Face's Nyströmformer runs exact attention, in O(n²), and so does this"
        ' model. Pass attention="nystrom" for landmarks, or attention="softmax" to silence this'
        " warning.",
        ExactAttentionWarning,
        stacklevel=3,
    )


def _default_model(source: Source) -> Model:
    if source.model is None:
        found = repr(source.architecture) if source.architecture else "no architecture"
        raise ValueError(
            f"{source.where} names {found} in its config.json, which is not one of this package's"
            f" models: pass model_class, one of {', '.join(MODELS)}."
        )
    if not source.family.heads.get(source.model) and source.model is not MODELS["Nystromformer"]:
        raise ValueError(
            f"{source.where} holds a {source.architecture}, whose head is unsupported: pass"
            f" model_class={source.model.__name__} for a new head on the same backbone."
        )
    return source.model
