"""Converts the authors' PyTorch checkpoints of LRA models to Flax parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from lra import train
from nystromformer_jax.pretrained.files import read_torch
from nystromformer_jax.pretrained.names import AUTHORS_ATTENTION, encoder_modules, tensor_name
from nystromformer_jax.pretrained.tensors import conv_kernel, mismatch_error

# With the same weights, the authors' other attentions compute different outputs: Performer has another
# kernel, linear attention is not normalized, Reformer's queries have no bias.
ATTENTIONS = ("softmax", "nystrom", "linformer")


def load_authors_checkpoint(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Loads a checkpoint of the authors' `run_tasks.py` as parameters of the model of `config`.

    With `quirks=mlpen` in the config, the logits equal the authors'. The caller must convert the token ids
    of ListOps, whose vocabulary has another order here; bytes and pixels have the same ids.

    Source: mlpen/Nystromformer at 5689313, LRA/code/model.py and model_wrapper.py.

    The file, `*.model`, was pickled by PyTorch, and reading it needs the package torch. The config has the
    same sections as for `train.prepare`; its model.max_len may be smaller than the checkpoint's.

    Raises:
      ValueError: The file is corrupt, its tensors do not match the model, or the attention differs from
        the authors'.
      FileNotFoundError: The file does not exist.
      ImportError: torch is not installed.
    """
    run = train.prepare(config)
    if run.attention not in ATTENTIONS:
        raise ValueError(
            f"attention.name={run.attention} differs from the authors' {run.attention} attention;"
            f" their checkpoints can be read for {', '.join(ATTENTIONS)}."
        )
    tensors = {name.removeprefix("module."): x for name, x in read_torch(file).items()}
    modules = _modules(tied="model.transformer.norm1.weight" in tensors)
    wanted = flatten_dict(jax.eval_shape(train.make_params(run)), sep="/")
    params: dict[str, Any] = {}
    missing, misshapen = list[str](), list[str]()
    unknown = set(tensors)
    for path, leaf in wanted.items():
        name = tensor_name(path, modules) or path
        name = name.replace("mha.attn.projection", "mha.attn.E")
        if name not in tensors:
            missing.append(name)
            continue
        unknown.discard(name)
        param = _to_param(path, tensors[name], leaf.shape)
        params[path] = jnp.asarray(param)
        if param.shape != leaf.shape:
            misshapen.append(f"{name} is {list(param.shape)} here, needs {list(leaf.shape)}")
    if missing or misshapen or unknown:
        raise mismatch_error(
            f"The parameters in {file} do not match this config's {type(run.model).__name__}"
            f" with {run.attention} attention",
            missing=missing,
            misshapen=misshapen,
            unknown=sorted(unknown),
        )
    return unflatten_dict(params, sep="/")


def _modules(tied: bool) -> dict[str, str]:
    """Returns the authors' module names by Flax module; `tied` if all layers share their weights."""
    layers = encoder_modules(
        "model.transformer." if tied else "model.transformer_{i}.",
        {
            **AUTHORS_ATTENTION,
            "attention_norm": "norm1",
            "mlp_norm": "norm2",
            "mlp/hidden": "mlpblock.0",
            "mlp/output": "mlpblock.3",
        },
    )
    return {
        "sequence_encoder/token_embedding": "model.embeddings.word_embeddings",
        "sequence_encoder/position_embedding": "model.embeddings.position_embeddings",
        **{f"sequence_encoder/{ours}": theirs for ours, theirs in layers.items()},
        "sequence_encoder/encoder/final_norm": "model.norm",
        "head_hidden": "seq_classifer.mlpblock.0",
        "head_output": "seq_classifer.mlpblock.2",
    }


def _to_param(path: str, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Converts a tensor to the axes of a Flax parameter; truncates position embeddings to `shape`."""
    if path.endswith("conv_kernel") and tensor.ndim == 4:
        return conv_kernel(tensor)
    if path.endswith("/kernel"):
        return tensor.T  # PyTorch's [F, E] to Flax's [E, F]
    if path.endswith("position_embedding/embedding"):
        return tensor[: shape[0]]
    if path.endswith("projection"):
        return tensor[..., : shape[-1]]
    return tensor
