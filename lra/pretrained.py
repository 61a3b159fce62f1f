"""Converts the authors' PyTorch checkpoints of LRA models to Flax parameters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from lra import train
from nystromformer_jax.pretrained.files import read_torch
from nystromformer_jax.pretrained.names import LAYER, tensor_name
from nystromformer_jax.pretrained.tensors import mismatch_error, to_param

# With the same weights, the authors' other attentions compute different outputs: Performer has another
# kernel, linear attention is not normalized, Reformer's queries have no bias.
ATTENTIONS = ("softmax", "nystrom", "linformer")
# The authors' module names by Flax module, outside and inside a layer.
MODULES = {
    "token_embedding": "model.embeddings.word_embeddings",
    "position_embedding": "model.embeddings.position_embeddings",
    "encoder/final_norm": "model.norm",
}
IN_LAYER = {
    "attention/query": "mha.W_q",
    "attention/key": "mha.W_k",
    "attention/value": "mha.W_v",
    "attention/core": "mha.attn",
    "attention/out": "mha.ff",
    "attention_norm": "norm1",
    "mlp_norm": "norm2",
    "mlp/hidden": "mlpblock.0",
    "mlp/output": "mlpblock.3",
}
HEAD = {"head_hidden": "seq_classifer.mlpblock.0", "head_output": "seq_classifer.mlpblock.2"}


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
    tied = "model.transformer.norm1.weight" in tensors  # all layers share their weights
    layer = "model.transformer." if tied else "model.transformer_{i}."
    encoder = {**MODULES, **{LAYER + ours: layer + theirs for ours, theirs in IN_LAYER.items()}}
    modules = HEAD | {f"sequence_encoder/{ours}": theirs for ours, theirs in encoder.items()}
    wanted = flatten_dict(jax.eval_shape(train.make_params(run)), sep="/")
    params: dict[str, Any] = {}
    wrong, unknown = list[str](), set(tensors)
    for path, leaf in wanted.items():
        name = tensor_name(path, modules) or path
        name = name.replace("mha.attn.projection", "mha.attn.E")
        if name not in tensors:
            wrong.append(f"{name} is missing")
            continue
        unknown.discard(name)
        param = to_param(path, tensors[name])
        if path.endswith("position_embedding/embedding"):
            param = param[: leaf.shape[0]]
        if path.endswith("projection"):
            param = param[..., : leaf.shape[-1]]
        params[path] = jnp.asarray(param)
        if param.shape != leaf.shape:
            wrong.append(f"{name} is {list(param.shape)} here, needs {list(leaf.shape)}")
    if wrong or unknown:
        raise mismatch_error(
            f"The parameters in {file} do not match this config's {type(run.model).__name__}"
            f" with {run.attention} attention",
            wrong,
            sorted(unknown),
        )
    return unflatten_dict(params, sep="/")
