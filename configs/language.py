"""Shared parts of the configs for pretraining and fine-tuning."""

from typing import Any

from ml_collections import ConfigDict

from configs.common import defaults, value_of
from nystromformer_jax.spelling import nearest

# Fields of NystromformerConfig used by each attention, with their defaults.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        "num_landmarks": 64,
        "conv_kernel_size": 33,
        "pinv_iters": 6,
        "pinv_start": "exact",
        "landmark_layout": "real",
        "landmark_selection": "segments",
        "mask_conv": True,
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
            "init": {"checkpoint": "", "from_scratch": False, "quirks": "none"},
            "mesh": defaults("mesh"),
            "checkpoint": {"every_steps": 1000},
            "log": {**defaults("log"), "every_steps": 100},
        }
    )
