"""What a run starts from: sizes in the config, or a checkpoint's sizes and, or not, its weights."""

import dataclasses
import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn

from harness.cache import user_path
from language.tokenizer import Tokenizer
from nystromformer_jax import NystromformerConfig
from nystromformer_jax.cores import CORES
from nystromformer_jax.pretrained import from_pretrained, read_config
from nystromformer_jax.spelling import nearest
from nystromformer_jax.training import from_mapping

_logger = logging.getLogger(__name__)

__all__ = ["InitConfig", "check_tokenizer", "model_config", "read_params", "require_packages"]

# What may be asked of a checkpoint's model beside its attention.
OF_A_CHECKPOINT = ("dropout_rate", "attention_dropout_rate", "dtype")
# The fields of `NystromformerConfig` that the section "attention" has, beside the name.
OF_ATTENTION = (
    "num_landmarks",
    "conv_kernel_size",
    "pinv_iters",
    "pinv_start",
    "landmark_layout",
    "mask_conv",
    "implementation",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitConfig:
    """Where parameters come from.

    Args:
      checkpoint: a folder that `nystromformer_jax.pretrained.from_pretrained` reads; empty: none.
      from_scratch: whether to take sizes and tokenizer from the checkpoint, but not its weights.
      quirks: "hf" treats padding as Hugging Face's port does.
    """

    checkpoint: str = ""
    from_scratch: bool = False
    quirks: Literal["none", "hf"] = "none"

    def __post_init__(self) -> None:
        if self.from_scratch and not self.checkpoint:
            raise ValueError(
                "init.from_scratch: takes the sizes of init.checkpoint, which is empty; set that, or"
                " leave init.from_scratch at False."
            )
        if self.quirks != "none" and not self.checkpoint:
            raise ValueError(
                f"init.quirks={self.quirks}: says how init.checkpoint is read, and that is empty."
            )

    @property
    def folder(self) -> Path:
        """The checkpoint's folder."""
        return user_path(self.checkpoint)

    @property
    def reads_weights(self) -> bool:
        """Whether the run starts from weights that are there."""
        return bool(self.checkpoint) and not self.from_scratch


def require_packages() -> None:
    """Refuses to begin what would end in a missing package.

    Raises:
      ImportError: One of the extra `language` is not installed.
    """
    for name in ("tokenizers", "safetensors", "sklearn", "scipy"):
        if importlib.util.find_spec(name) is None:
            raise ImportError(
                f"The package {name} is not installed: pip install -e '.[language]' in the clone."
            )


def model_config(
    model: Mapping[str, Any], attention: Mapping[str, Any], init: InitConfig, **sizes: int
) -> NystromformerConfig:
    """The model that the config's sections and the checkpoint describe.

    Args:
      model: the section "model": all sizes, or beside a checkpoint `OF_A_CHECKPOINT` alone.
      attention: the section "attention": a name and options; an empty name is the checkpoint's own.
      init: the section "init".
      **sizes: fields that the data decide; beside a checkpoint not `vocab_size`.

    Raises:
      ValueError: An unknown key, a value of the wrong type, or sizes that a checkpoint has, too.
    """
    options = dict(attention)
    name = options.pop("name", "")
    _check_attention(name, options)
    if not init.checkpoint:
        if not name:
            raise ValueError(
                "attention.name: is empty, and there is no init.checkpoint to have one."
            )
        values = {**model, **options, "attention": name, **sizes}
        return from_mapping(NystromformerConfig, values, "model")
    for key in model:
        if key not in OF_A_CHECKPOINT:
            raise ValueError(
                f"model.{key}: with init.checkpoint the sizes are the checkpoint's; set only"
                f" {', '.join(OF_A_CHECKPOINT)}, as configs/pretrain.py:checkpoint does."
            )
    if name:
        options["attention"] = name
    elif options:
        raise ValueError(
            f"attention.{min(options)}: needs attention.name, which is empty (the checkpoint's own)."
        )
    sizes.pop("vocab_size", None)
    changes = {**model, **options, **sizes}
    from_mapping(NystromformerConfig, {"vocab_size": 1, **changes}, "model")  # for its errors
    config = read_config(init.folder, quirks=init.quirks, **changes)
    theirs = read_config(init.folder, attention=config.attention).max_len
    if config.max_len != theirs:
        how = "repeats them" if config.max_len > theirs else "takes the first ones"
        _logger.info(
            "%s has %d positions; data.max_len=%d %s.",
            init.checkpoint,
            theirs,
            config.max_len,
            how,
        )
    return config


def _check_attention(name: str, options: Mapping[str, Any]) -> None:
    """Refuses what the section "attention" cannot hold, by its own keys and not by the model's."""
    if name not in ("", *CORES):
        raise ValueError(f"attention.name: {name!r} is unknown{nearest(str(name), CORES)}")
    for key in options:
        if key not in OF_ATTENTION:
            hint = nearest(key, OF_ATTENTION, "attention.")
            raise ValueError(f"attention.{key}: no such key{hint}")
    from_mapping(NystromformerConfig, {"vocab_size": 1, **options}, "attention")


def read_params(
    init: InitConfig, config: NystromformerConfig, model_class: type[nn.Module], seed: int
) -> Any:
    """The checkpoint's parameters in the shapes of `config`; heads that it lacks are drawn anew."""
    changes = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    _, variables = from_pretrained(init.folder, model_class=model_class, seed=seed, **changes)
    return variables["params"]


def check_tokenizer(tokenizer: Tokenizer, config: NystromformerConfig) -> None:
    """Refuses a tokenizer whose tokens the model has no row for.

    Raises:
      ValueError: More tokens than rows.
    """
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"The tokenizer has {tokenizer.vocab_size:,} tokens and the model {config.vocab_size:,}:"
            " they do not belong together. Take the checkpoint's own tokenizer."
        )
