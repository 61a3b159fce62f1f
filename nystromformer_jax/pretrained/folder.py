"""Loads and saves models: `from_pretrained` and `save_pretrained`."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
from jax.typing import DTypeLike

from nystromformer_jax.backbone import NystromformerConfig
from nystromformer_jax.pretrained import files
from nystromformer_jax.pretrained.authors import read_authors_checkpoint
from nystromformer_jax.pretrained.config_json import (
    MAX_TEXT_LEN,
    Source,
    UpstreamMismatchWarning,
    head_activations,
    position_offset,
    read_source,
    write_config,
)
from nystromformer_jax.pretrained.names import FAMILIES, MODELS, ROBERTAS, TOKEN_HEADS, ModelClass
from nystromformer_jax.pretrained.tensors import model_of, read_params, write_tensors
from nystromformer_jax.support.spelling import nearest

Quirks = Literal["none", "hf"]
QUIRKS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "hf": {"landmark_layout": "hf", "pinv_start": "batch_max", "mask_conv": False},
}
NEW_CONV_KERNEL_SIZE = 33  # used by the authors at 512 tokens


class ExactAttentionWarning(UserWarning):
    """The checkpoint is a Nyströmformer that computes exact attention, in quadratic time."""


def from_pretrained(
    folder: str | os.PathLike[str],
    *,
    model_class: ModelClass | None = None,
    quirks: Quirks = "none",
    dtype: DTypeLike = "float32",
    seed: int = 0,
    **changes: Any,
) -> tuple[Any, dict[str, Any]]:
    """Loads a model and its variables from a folder in Hugging Face's layout.

        model, variables = from_pretrained(folder, attention="nystrom", max_len=4096)
        logits = model.apply(variables, inputs, mask=mask, deterministic=True)

    Supports Nyströmformer, BERT, RoBERTa, XLM-RoBERTa and CamemBERT in safetensors format or as
    pytorch_model.bin, sharded or not, in float16, bfloat16 or float32. A .bin file is a pickle, which is
    read by torch with weights_only=True. Parameters are converted to float32. Without changes the outputs
    equal those of Hugging Face on unpadded input. All but Nyströmformer get attention="softmax" and no
    convolution. A Nyströmformer whose num_landmarks equals segment_means_seq_len gets attention="softmax"
    with its convolution, and a warning. In landmark attention the initial pseudoinverse is scaled per
    matrix; in Hugging Face's code, and with quirks="hf", it is scaled by one maximum over the batch.

    Some changes also convert parameters:

    - attention="nystrom" adds convolution kernels of width 33 to a model without them. They are zero, so
      they have no effect before training. A conv_kernel_size larger than in the checkpoint pads the kernels
      with zeros, 0 removes them, and a smaller size is an error.
    - max_len extends the position table by repeating it, or truncates it.
    - model_class and num_labels may require a head that is not in the checkpoint. It is initialized
      from `seed`. Any other missing tensor or wrong shape is an error.
    - A num_layers smaller than in the checkpoint selects the first layers.
    - tie_word_embeddings=False gives a tied decoder parameters of its own, a copy of the embeddings.

    Unused tensors are ignored. One log line lists them, except for other heads, poolers, buffers, and key
    projections and convolution kernels that another attention does not have.

    Args:
      folder: Folder with config.json and model.safetensors or pytorch_model.bin; or a checkpoint file of the
        authors' BERT code, with its config.json in the same folder or the one above.
      model_class: `Nystromformer`, or a class of `nystromformer_jax.models`; None: the class named in
        config.json, or `Nystromformer` if the weights have no tensor of its head.
      quirks: "hf" reproduces how Hugging Face's code handles padding at the end, and batches. Positions
        still count real tokens only.
      dtype: Dtype of activations, float32 or bfloat16, which is not saved with a model.
      seed: Seed of parameters that are not in the checkpoint.
      **changes: Fields of `NystromformerConfig`. dropout_rate also replaces the classifier_dropout of
        config.json.

    Raises:
      FileNotFoundError: The folder, config.json or the weights are missing.
      ValueError: A file is corrupt, the model is unsupported, or tensors or changes are invalid.
      ImportError: The package safetensors is not installed, or torch for pytorch_model.bin and checkpoints
        of the authors.
    """
    path = Path(folder)
    if path.is_file():
        source, tensors = read_authors_checkpoint(path, model_class)
    else:
        source = read_source(files.read_config_file(path), path)
        tensors = files.read_weights(path)
    model_class = model_class or model_of(source, tensors)
    if model_class is None or model_class not in MODELS.values():
        raise ValueError(
            f"model_class must be one of {', '.join(MODELS)}, got {model_class!r}; the architecture in the"
            f" config.json of {source.where} is {source.architecture or None!r}."
        )
    activation = source.fields["activation"]
    is_roberta = source.family in ROBERTAS.values()
    if is_roberta and model_class in TOKEN_HEADS and activation != "gelu":
        raise ValueError(
            f"{source.where} has hidden_act = {activation!r} in its config.json, but RoBERTa's head for"
            ' masked tokens always has "gelu": pass another model_class or checkpoint.'
        )
    model: Any = model_class(_make_config(source, quirks, {**changes, "dtype": dtype}))
    params = read_params(model, source, tensors, seed=seed)
    _warn_of_exact_attention(source, changes)
    return model, {"params": params}


def read_config(
    folder: str | os.PathLike[str],
    *,
    quirks: Quirks = "none",
    dtype: DTypeLike = "float32",
    **changes: Any,
) -> NystromformerConfig:
    """Returns the config of the model that `from_pretrained` returns for the same folder and arguments.

    Raises:
      FileNotFoundError: The folder or config.json is missing.
      ValueError: A file is corrupt, the model is unsupported, or a change is invalid.
    """
    path = Path(folder)
    source = read_source(files.read_config_file(path), path)
    config = _make_config(source, quirks, {**changes, "dtype": dtype})
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

    A model with softmax attention and no convolution is written as BERT. If it was loaded from RoBERTa,
    XLM-RoBERTa or CamemBERT, it is written as such a model, unless RoBERTa does not have its head. All
    other models, and heads with an activation that BERT does not have, are written as Nyströmformer.

    With attention="softmax", `transformers` computes the same logits, unless the head has another
    activation: in a Nyströmformer of `transformers`, a classifier has the `activation` of the config, and
    multiple choice has relu. With attention="nystrom", segment_means_seq_len is set to max_len, and
    `transformers` supports only unpadded inputs of exactly this length, which must be a multiple of
    num_landmarks. It starts the pseudoinverse from one maximum over the batch (pinv_start="batch_max"),
    and all other options have their defaults. In place of other attentions, it computes exact attention.
    An `UpstreamMismatchWarning` says that outputs differ.

    Fields without a key in `transformers` are saved in the section "nystromformer_jax" of config.json.
    `from_pretrained` then returns an equal config (except dtype, remat, num_labels, which is 2 for question
    answering, and a classifier_activation of None, which may become the equal value of `activation`) and
    identical parameters. If `transformers` saved a Nyströmformer again, `from_pretrained` ignores the section
    with a warning, because the weights may have been trained there.

    Each file is replaced atomically.

    Args:
      folder: Created if missing.
      model: A `Nystromformer`, or a model of `nystromformer_jax.models`.
      variables: Result of `model.init`: {"params": …}.
      more: Additional fields of config.json, such as the tokenizer's `pad_token_id`.

    Raises:
      ValueError: The model is unsupported, or the parameters do not match it.
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
    tensors = write_tensors(model, variables["params"], layout, position_offset(fields))
    files.write_folder(Path(folder), fields, tensors)
    ours, theirs = head_activations(type(model), config)
    if config.attention != "softmax" or (layout == "nystromformer" and ours != theirs):
        cause = f"{config.attention} attention"
        if config.attention == "softmax":
            cause = f"the activation {ours} in its head"
        warnings.warn(
            f"transformers reads {folder}, but does not compute the same as this model with {cause}; the"
            " documentation of save_pretrained says why.",
            UpstreamMismatchWarning,
            stacklevel=2,
        )


def _make_config(source: Source, quirks: str, changes: Mapping[str, Any]) -> NystromformerConfig:
    """Returns the config described by `source`, updated with `changes`."""
    if quirks not in QUIRKS:
        raise ValueError(f"Unknown quirks {quirks!r}{nearest(quirks, QUIRKS)}")
    known = {field.name for field in dataclasses.fields(NystromformerConfig)}
    for name in changes.keys() - known:
        raise ValueError(f"NystromformerConfig has no field {name!r}{nearest(name, known)}")
    fields = {**source.fields, **QUIRKS[quirks], **changes}
    if "dropout_rate" in changes and "classifier_dropout_rate" not in changes:
        fields["classifier_dropout_rate"] = None
    # Nyström attention adds a new convolution to BERT, RoBERTa and the authors' softmax models.
    is_foreign = source.family is not FAMILIES["nystromformer"]
    if is_foreign and fields["attention"] == "nystrom" and "conv_kernel_size" not in changes:
        fields["conv_kernel_size"] = NEW_CONV_KERNEL_SIZE
    width = fields["conv_kernel_size"]
    if 0 < width < source.conv_width:
        raise ValueError(
            f"conv_kernel_size={width} would cut the kernels of {source.where}, which are"
            f" {source.conv_width} wide: pass {source.conv_width} or more, or 0 for none."
        )
    if "max_len" in changes:  # not that of the run any more
        fields["metadata"] = {k: v for k, v in fields["metadata"].items() if k != MAX_TEXT_LEN}
    config = NystromformerConfig(**fields)
    if config.num_heads != source.fields["num_heads"]:  # no tensor shows it
        raise ValueError(
            f"num_heads={config.num_heads} was passed, but the weights in {source.where} have"
            f" num_heads={source.fields['num_heads']}: leave num_heads out."
        )
    return config


def _warn_of_exact_attention(source: Source, changes: Mapping[str, Any]) -> None:
    """Warns if attention is exact only because num_landmarks equals segment_means_seq_len."""
    if source.why_exact and "attention" not in changes:
        warnings.warn(
            f"{source.where} has {source.why_exact}, in O(n²), upstream and here. Pass"
            ' attention="nystrom" for landmarks, or attention="softmax" to silence this warning.',
            ExactAttentionWarning,
            stacklevel=3,
        )
