"""What pretraining and fine-tuning configs share: the attention behind the colon, and the loop's sections."""

from typing import Any

from ml_collections import ConfigDict

from configs.argument import value_of
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


def attention(name: str, options: dict[str, str], *, of_checkpoint: bool) -> dict[str, Any]:
    """The section "attention".

    Args:
      name: One of `ATTENTIONS`; empty for a checkpoint's own.
      options: What `argument.parse` gave, without what the config takes for itself.
      of_checkpoint: Whether there is a checkpoint, whose values stand where `options` have none.

    Raises:
      ValueError: An unknown attention or option.
    """
    if name and name not in ATTENTIONS:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, ATTENTIONS)}")
    if options and not name:
        raise ValueError(_of_no_attention(*next(iter(options.items()))))
    defaults = ATTENTIONS[name] if name else {}
    for option in options:
        if option not in defaults:
            raise ValueError(
                f"{name} attention has no option {option!r}{nearest(option, defaults)}"
            )
    values = {option: value_of(value) for option, value in options.items()}
    return {"name": name, **({} if of_checkpoint else defaults), **values}


def _of_no_attention(option: str, value: str) -> str:
    """A sentence about an option of the checkpoint's own attention, whose name is not known yet."""
    owner = next((name for name, options in ATTENTIONS.items() if option in options), "")
    if not owner:
        known = {option for options in ATTENTIONS.values() for option in options}
        return f"There is no option {option!r}{nearest(option, {*known, 'attention', 'max_len'})}"
    return f"{option}={value}: name the attention too: attention={owner},{option}={value}."


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
