"""Checkpoints of runs: the sizes and the weights that a run starts from, and the model that it saves."""

import dataclasses
import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from language.config import InitConfig
from language.tokenizer import Tokenizer, load_tokenizer
from nystromformer_jax import NystromformerConfig
from nystromformer_jax.attention.options import DEFAULTS
from nystromformer_jax.backbone import PRESETS, AttentionName
from nystromformer_jax.pretrained import from_pretrained, read_config, save_pretrained
from nystromformer_jax.pretrained.config_json import MAX_TEXT_LEN
from nystromformer_jax.pretrained.files import weight_files
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training import (
    Workdir,
    from_mapping,
    is_primary,
    sync_errors,
    writing_to,
)

# Keys of the section "model" that are allowed with a checkpoint. The checkpoint sets all other keys.
CHECKPOINT_OVERRIDES = ("dropout_rate", "attention_dropout_rate", "dtype")
# Fields of `NystromformerConfig` in the section "attention", besides the name.
ATTENTION_FIELDS = (*DEFAULTS, "conv_kernel_size", "implementation")


def require_packages() -> None:
    """Raises ImportError unless all packages of the extra `language` are installed."""
    for name in ("tokenizers", "safetensors", "sklearn", "scipy"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"The package {name} is not installed: pip install -e '.[language]' in the clone."
            )


def model_config(config: Mapping[str, Any], init: InitConfig, **fields: Any) -> NystromformerConfig:
    """Returns the model config, built from the config of a run and the checkpoint.

    `config` has the sections "model" (all sizes, or with a checkpoint only `CHECKPOINT_OVERRIDES`) and
    "attention" (a name and options; an empty name keeps the attention of the checkpoint). `fields` depend on
    data and devices; a checkpoint overrides `vocab_size`.

    Raises:
      ValueError: A key is unknown, a value is invalid, or the checkpoint already sets the key.
    """
    model, attention = config["model"], _attention_fields(config["attention"])
    if not init.checkpoint:
        missing = [f"model.{key}" for key in PRESETS["base"] if key not in model]
        missing += [] if "attention" in attention else ["attention.name"]
        if missing:
            raise ValueError(
                f"init.checkpoint: is empty, but the config does not set {', '.join(missing)}: set"
                " init.checkpoint to the folder of a model, or set these keys, as"
                " configs/pretrain.py:small does."
            )
        return from_mapping(NystromformerConfig, {**model, **attention, **fields}, "model")
    for key in model:
        if key not in CHECKPOINT_OVERRIDES:
            raise ValueError(
                f"model.{key}: with init.checkpoint the sizes are the checkpoint's; set only"
                f" {', '.join(CHECKPOINT_OVERRIDES)}, as configs/pretrain.py:checkpoint does."
            )
    if attention and "attention" not in attention:
        raise ValueError(
            f"attention.{min(attention)}: needs attention.name. An empty name selects the checkpoint's"
            " attention with its own options."
        )
    fields.pop("vocab_size", None)
    changes = {**model, **attention, **fields}
    from_mapping(NystromformerConfig, {"vocab_size": 1, **changes}, "model")  # to validate them
    return read_config(init.folder, quirks=init.quirks, **changes)


def _attention_fields(section: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `NystromformerConfig` from the section "attention", without an empty name."""
    options = dict(section)
    name = options.pop("name", "")
    known = get_args(AttentionName)
    if name not in ("", *known):
        raise ValueError(f"attention.name: {name!r} is unknown{nearest(str(name), known)}")
    for key in options:
        if key not in ATTENTION_FIELDS:
            hint = nearest(key, ATTENTION_FIELDS, "attention.")
            raise ValueError(f"attention.{key}: no such key{hint}")
    from_mapping(NystromformerConfig, {"vocab_size": 1, **options}, "attention")  # to validate
    return {**options, "attention": name} if name else options


def read_params(
    init: InitConfig, config: NystromformerConfig, model_class: type[nn.Module], seed: int
) -> Any:
    """Returns the checkpoint's parameters in the shapes of `config`; None for random initialization.

    Heads that are missing in the checkpoint are initialized at random from `seed`.
    """
    if not init.reads_weights:
        return None
    changes = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    _, variables = from_pretrained(init.folder, model_class=model_class, seed=seed, **changes)
    return variables["params"]


def make_params(model: Any, max_len: int, seed: int) -> Callable[[], Any]:
    """Returns a function that initializes the parameters of a model from `seed`."""
    tokens = jnp.zeros((1, max_len), jnp.int32)
    return lambda: model.init(jax.random.key(seed), tokens, deterministic=True)["params"]


def save_model(
    workdir: Workdir, model: Any, params: Any, tokenizer: Tokenizer, max_len: int, **fields: Any
) -> None:
    """Writes `model/` in a run's folder.

    `max_len` is the largest number of tokens of a text in the run, to which `load` truncates, too. `fields`
    are further ones of config.json.
    """
    with sync_errors(), writing_to(workdir.path):
        if is_primary():
            folder = workdir.path / "model"
            more = {**tokenizer.token_ids, MAX_TEXT_LEN: max_len, **fields}
            save_pretrained(folder, model, {"params": params}, more=more)
            tokenizer.save(folder, max_len, model.config.num_types)


def weights_sha256(init: InitConfig) -> str:
    """Returns the SHA-256 of the weight files that the run starts from; empty if there are none."""
    paths = weight_files(init.folder) if init.reads_weights else []
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest() if paths else ""


def record_weights(init: InitConfig, workdir: Workdir) -> str:
    """Returns the hash of the initial weights, recorded at the first start: the files may change later.

    Raises:
      ConfigDiffers: The run has no checkpoint yet, and would start from other weights than those recorded.
    """
    is_finished = workdir.result is not None or workdir.divergence is not None
    if workdir.has_checkpoints or is_finished:
        return workdir.record("init_sha256", lambda: weights_sha256(init))
    with sync_errors():
        sha256 = weights_sha256(init)
    workdir.require_same("init_sha256", sha256, f"weights in {init.checkpoint}")
    return sha256


def check_tokenizer(tokenizer: Tokenizer, config: NystromformerConfig) -> None:
    """Raises ValueError if a tokenizer has more tokens than the embedding of the model has rows."""
    size, rows = tokenizer.vocab_size, config.vocab_size
    if size > rows:
        raise _mismatch(f"The tokenizer has {size:,} tokens and the model {rows:,}")


def _mismatch(difference: str) -> ValueError:
    return ValueError(
        f"{difference}: they do not match. Use the tokenizer that the model was trained with. If you added"
        " tokens to it, resize the model with nystromformer_jax.pretrained.resize_token_embeddings."
    )


def check_same_vocabulary(tokenizer: Tokenizer, init: InitConfig) -> None:
    """Raises ValueError if the checkpoint has a tokenizer with a different vocabulary."""
    if not init.reads_weights:
        return
    try:
        expected = load_tokenizer(init.folder)
    except FileNotFoundError:  # the checkpoint has no tokenizer
        return
    if expected.vocabulary != tokenizer.vocabulary:
        raise _mismatch(f"data.tokenizer has other tokens than the tokenizer of {init.checkpoint}")
