"""`from_pretrained` and `save_pretrained`."""

import dataclasses
import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn

from nystromformer_jax.models import NystromformerConfig
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.names import FAMILIES, MODELS, Model
from nystromformer_jax.pretrained.ours import differences_upstream, write_config
from nystromformer_jax.pretrained.source import Source, read_source
from nystromformer_jax.pretrained.tensors import Tensors, read_params, write_tensors
from nystromformer_jax.spelling import nearest

Quirks = Literal["none", "hf"]
QUIRKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "hf": {"landmark_layout": "hf", "pinv_start": "batch_max", "mask_conv": False},
}
# The authors' at 512 tokens.
NEW_CONV_KERNEL_SIZE = 33

_logger = logging.getLogger(__name__)


class ExactAttentionWarning(UserWarning):
    """A checkpoint of a linear-time model whose upstream code runs attention in quadratic time."""


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    model_class: Model | None = None,
    quirks: Quirks = "none",
    dtype: Literal["float32", "bfloat16"] = "float32",
    seed: int = 0,
    **changes: Any,
) -> tuple[Any, dict[str, Any]]:
    """A model and its variables from a folder of `save_pretrained`'s or of Hugging Face's.

        model, variables = from_pretrained(folder, attention="nystrom", max_len=4096)
        logits = model.apply(variables, inputs, mask=mask, deterministic=True)

    Read are Nyströmformer, BERT and RoBERTa, in safetensors of one file or several, in float16,
    bfloat16 or float32; parameters become float32. Without changes the model computes what upstream
    computes on unpadded input: BERT and RoBERTa come with attention="softmax" and no convolution,
    and so does a Nyströmformer, with its convolution, where num_landmarks equals
    segment_means_seq_len; that one warns. In landmark attention ours starts the pseudoinverse from
    each matrix's own norms, upstream from one maximum over the batch, unless quirks="hf".

    What changes do beyond their names:

    - attention="nystrom" gives BERT and RoBERTa convolutions of 33 zeros, which change nothing until
      they are trained. A conv_kernel_size above the checkpoint's puts zeros around its kernels, 0
      drops them, and one between is refused.
    - max_len repeats the position table, or cuts it.
    - model_class and num_labels give a head that is not in the folder: it is made from `seed`.
      Otherwise a head that is missing is an error, as is all else that is missing or misshapen.
    - num_layers below the checkpoint's takes the first ones.

    Tensors that the model has no use for are passed over: other heads', poolers and buffers in
    silence, others with one log line.

    Args:
      folder: Holds config.json and model.safetensors.
      model_class: Of `nystromformer_jax.models`; None: the one that config.json names.
      quirks: "hf" for what Hugging Face's code does with padding and batches.
      dtype: Of activations; it is the machine's matter and not saved.
      seed: Of what the folder has not.
      **changes: Fields of `NystromformerConfig`.

    Raises:
      FileNotFoundError: No such folder, no config.json, no weights.
      ValueError: A damaged file, another model, tensors that do not fit, an unknown change.
      ImportError: Without the package safetensors.
    """
    folder = Path(folder)
    source = read_source(files.read_config_file(folder), folder)
    model = make_model(source, model_class, quirks, {**changes, "dtype": dtype})
    variables = make_variables(model, source, files.read_weights(folder), seed, changes)
    _warn_of_exact_attention(source, changes)
    return model, variables


def read_config(
    folder: str | os.PathLike[str],
    *,
    quirks: Quirks = "none",
    dtype: Literal["float32", "bfloat16"] = "float32",
    **changes: Any,
) -> NystromformerConfig:
    """The config of the model that `from_pretrained` gives for the same arguments; reads no weights.

    Raises:
      FileNotFoundError: No such folder, no config.json.
      ValueError: A damaged file, another model, an unknown change.
    """
    folder = Path(folder)
    source = read_source(files.read_config_file(folder), folder)
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
    """Writes config.json and model.safetensors in the layout of Hugging Face's Nyströmformer.

    `transformers` loads the folder. With attention="softmax" it gives the same logits. With
    attention="nystrom" segment_means_seq_len is max_len, and its landmark attention runs on inputs
    of just that length, all real, and no others. Where it computes something else from any input, a
    log line says so. Fields that its config has not stand under "nystromformer_jax", so that
    `from_pretrained` gives back the equal config (but for dtype, sequence_axis and remat) and the same
    bits.

    Each file is replaced whole or not at all.

    Args:
      folder: Made if missing.
      model: Of `nystromformer_jax.models`.
      variables: What `model.init` gives: {"params": …}.
      more: Other fields of config.json, such as the tokenizer's `pad_token_id`.

    Raises:
      ValueError: Another model, or parameters that are not its.
      ImportError: Without the package safetensors.
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
    tensors = write_tensors(model, variables["params"])
    fields = {**write_config(type(model), config), **(more or {})}
    files.write_folder(Path(folder), fields, tensors)
    if differences := differences_upstream(type(model), config):
        _logger.info("transformers reads %s, but %s.", folder, "; ".join(differences))


def make_config(source: Source, quirks: str, changes: Mapping[str, Any]) -> NystromformerConfig:
    """The config that `source` describes, with changes.

    Raises:
      ValueError: An unknown change or quirk, or a value that cannot be.
    """
    if quirks not in QUIRKS:
        raise ValueError(f"There are no quirks {quirks!r}{nearest(quirks, QUIRKS)}")
    known = {field.name for field in dataclasses.fields(NystromformerConfig)}
    for name in changes:
        if name not in known:
            raise ValueError(f"There is no field {name!r} to change{nearest(name, known)}")
    fields = {**source.fields, **QUIRKS[quirks], **changes}
    # A Nyströmformer says itself what convolution it has; a model of softmax attention gets one anew.
    foreign = source.family is not FAMILIES["nystromformer"]
    turned = (source.fields["attention"], fields["attention"]) == ("softmax", "nystrom")
    width = source.conv_kernel_size
    if foreign and turned and not width and "conv_kernel_size" not in changes:
        fields["conv_kernel_size"] = NEW_CONV_KERNEL_SIZE
    if 0 < fields["conv_kernel_size"] < width:
        raise ValueError(
            f"conv_kernel_size={fields['conv_kernel_size']} would cut the kernels of"
            f" {source.where}, which are {width} wide: pass {width} or more, or 0 for none."
        )
    return NystromformerConfig(**fields)


def make_model(
    source: Source, model_class: Model | None, quirks: str, changes: Mapping[str, Any]
) -> Any:
    """The model that `source` describes, with changes.

    Raises:
      ValueError: What `make_config` refuses, and a head that ours cannot be.
    """
    if model_class is None:
        model_class = _default_model(source)
    elif model_class not in MODELS.values():
        raise ValueError(f"model_class must be one of {', '.join(MODELS)}, got {model_class!r}.")
    return model_class(make_config(source, quirks, changes))


def make_variables(
    model: Any, source: Source, tensors: Tensors, seed: int, changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The variables of a model that `make_model` made."""
    other_labels = "num_labels" in changes
    return {"params": read_params(model, source, tensors, seed=seed, other_labels=other_labels)}


def _warn_of_exact_attention(source: Source, changes: Mapping[str, Any]) -> None:
    """Says what a config says without saying it."""
    if not source.exact_by_equality or "attention" in changes:
        return
    landmarks = source.fields["num_landmarks"]
    warnings.warn(
        f"{source.where} has num_landmarks = segment_means_seq_len = {landmarks}; where the two are"
        " equal, Hugging Face's Nyströmformer runs exact attention, in O(n²), and so does this"
        ' model. Pass attention="nystrom" for landmarks, or attention="softmax" to say that you'
        " know.",
        ExactAttentionWarning,
        stacklevel=3,
    )


def _default_model(source: Source) -> Model:
    if source.model is None:
        said = f"names {source.head!r}" if source.head else "names no architecture"
        raise ValueError(
            f"{source.where} {said} in its config.json, which is none of this package's models:"
            f" pass model_class, one of {', '.join(MODELS)}."
        )
    if not source.family.heads.get(source.model) and source.model is not MODELS["Nystromformer"]:
        raise ValueError(
            f"{source.where} holds a {source.head}, whose head is built otherwise than ours: pass"
            f" model_class={source.model.__name__} for a new one on the same backbone."
        )
    return source.model
