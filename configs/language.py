"""What pretraining and fine-tuning configs share: the attention behind the colon, and the loop's sections."""

import ast
from typing import Any

from ml_collections import ConfigDict

from harness.spelling import nearest

# The fields of NystromformerConfig that each attention reads; the others have their defaults.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        "num_landmarks": 64,
        "conv_kernel_size": 33,
        "pinv_iters": 6,
        "pinv_start": "exact",
        "landmark_layout": "real",
        "mask_conv": True,
    },
    "softmax": {"conv_kernel_size": 0},
    "reformer": {},
    "linformer": {},
    "performer": {},
    "longformer": {},
    "linear": {},
}


def parse(argument: str) -> tuple[str, dict[str, str]]:
    """Splits `NAME[,option=value …]`.

    Raises:
      ValueError: An option without a value, or one that is there twice.
    """
    name, *settings = argument.split(",")
    options: dict[str, str] = {}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(f"{setting!r} behind {name!r} needs a value: {setting}=…")
        if option in options:
            raise ValueError(f"{option} is there twice; leave one out.")
        options[option] = value
    return name, options


def attention(name: str, options: dict[str, str], *, of_checkpoint: bool) -> dict[str, Any]:
    """The section "attention".

    Args:
      name: One of `ATTENTIONS`; empty for a checkpoint's own.
      options: What `parse` gave, without what the config takes for itself.
      of_checkpoint: Whether there is a checkpoint, whose values stand where `options` have none.

    Raises:
      ValueError: An unknown attention or option.
    """
    if name and name not in ATTENTIONS:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, ATTENTIONS)}")
    defaults = ATTENTIONS[name] if name else {}
    section: dict[str, Any] = {"name": name, **({} if of_checkpoint else defaults)}
    for option, value in options.items():
        if option not in defaults:
            where = f"{name} attention" if name else "The checkpoint's own attention"
            raise ValueError(f"{where} has no option {option!r}{nearest(option, defaults)}")
        try:
            section[option] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            section[option] = value
    return section


def base() -> ConfigDict:
    """The sections that neither trainer changes."""
    return ConfigDict(
        {
            "init": {"checkpoint": "", "from_scratch": False, "quirks": "none"},
            "mesh": {"data": -1, "sequence": 1, "shard_params": False},
            "checkpoint": {"every_steps": 1000},
            "log": {"every_steps": 100, "events": True},
        }
    )
