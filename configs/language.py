"""Shared parts of the configs for pretraining and fine-tuning."""

from typing import Any

from ml_collections import ConfigDict

from configs.common import defaults, value_of
from language.config import (
    FinetuneEvalConfig,
    FinetuneOptimizerConfig,
    FinetuneTrainConfig,
    InitConfig,
)
from nystromformer_jax.attention.options import NystromOptions
from nystromformer_jax.support.spelling import nearest
from nystromformer_jax.training.config import LogConfig, MeshConfig

MODEL = {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "dtype": "float32"}
# Fields of NystromformerConfig used by each attention, with their defaults.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        **defaults(NystromOptions),
        "conv_kernel_size": 33,
        "implementation": "auto",
    },
    "softmax": {"conv_kernel_size": 0},
    "reformer": {},
    "linformer": {},
    "performer": {},
    "longformer": {},
    "linear": {},
}


def attention(name: str, options: dict[str, str], *, of_checkpoint: bool) -> dict[str, Any]:
    """Returns the section "attention" of a config.

    Args:
      name: One of `ATTENTIONS`, or empty for the attention of the checkpoint.
      options: Options of the attention.
      of_checkpoint: True if options that are not in `options` are taken from a checkpoint.

    Raises:
      ValueError: The attention or an option is unknown.
    """
    if name and name not in ATTENTIONS:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, ATTENTIONS)}")
    if options and not name:
        raise ValueError(_option_without_attention(*next(iter(options.items()))))
    defaults = ATTENTIONS[name] if name else {}
    for option in options:
        if option not in defaults:
            raise ValueError(
                f"{name} attention has no option {option!r}{nearest(option, defaults)}"
            )
    values = {option: value_of(value) for option, value in options.items()}
    return {"name": name, **({} if of_checkpoint else defaults), **values}


def _option_without_attention(option: str, value: str) -> str:
    """Returns an error message for an option without the name of an attention."""
    owner = next((name for name, options in ATTENTIONS.items() if option in options), "")
    if not owner:
        known = {option for options in ATTENTIONS.values() for option in options}
        return f"Unknown option {option!r}{nearest(option, {*known, 'attention', 'max_len'})}"
    return f"{option}={value}: name the attention too: attention={owner},{option}={value}."


def base() -> ConfigDict:
    """Returns the config sections shared by pretraining and fine-tuning."""
    return ConfigDict(
        {
            "init": defaults(InitConfig),
            "mesh": defaults(MeshConfig),
            "checkpoint": {"every_steps": 1000},
            "log": {**defaults(LogConfig), "every_steps": 100},
        }
    )


def max_len(options: dict[str, str], default: int) -> int:
    """Removes max_len from `options` and returns it as a number; if it is missing, returns `default`."""
    value = options.pop("max_len", str(default))
    if not value.isdecimal():
        raise ValueError(f"max_len must be a whole number of tokens, got {value!r}.")
    return int(value)


def finetuning(data: dict[str, Any], options: dict[str, str]) -> ConfigDict:
    """Returns the config of fine-tuning with the section `data`.

    `options` are those after the colon: attention, max_len and options of the attention.

    Raises:
      ValueError: An option is unknown or invalid.
    """
    config = base()
    batching = {"group_by_length": True, "base_len": 16}
    config.data = {**data, **batching, "max_len": max_len(options, data["max_len"])}
    config.model = dict(MODEL)
    config.attention = attention(options.pop("attention", ""), options, of_checkpoint=True)
    config.optimizer = {
        **defaults(FinetuneOptimizerConfig),
        "learning_rate": 3e-5,
        "warmup_share": 0.05,
    }
    config.train = {**defaults(FinetuneTrainConfig), "epochs": 4.0, "batch_size": 32}
    config.eval = defaults(FinetuneEvalConfig)
    config.log.every_steps = 20
    return config
