"""What every LRA config starts from, and what stands behind its colon: `:nystrom,num_landmarks=128`."""

import ast
import difflib
from typing import Any

from ml_collections import ConfigDict

# Options of each attention; the paper's (Xiong et al. 2021, appendix; authors' LRA code, lra_config.py).
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        "num_landmarks": 64,
        "conv_kernel_size": 35,
        "pinv_iters": 6,
        "pinv_start": "exact",
        "landmark_layout": "real",
    },
    "softmax": {"conv_kernel_size": 0, "dropout_rate": 0.1},
}


def base() -> ConfigDict:
    """The sections every task shares: the authors' model sizes, optimizer and evaluation."""
    return ConfigDict(
        {
            "data": {"source": "auto", "dir": "", "examples": 0, "seed": 0, "workers": 0},
            "model": {
                "num_layers": 2,
                "embed_dim": 64,
                "num_heads": 2,
                "head_dim": 32,
                "mlp_dim": 128,
                "dropout_rate": 0.1,
                "dtype": "float32",
            },
            "optimizer": {
                "learning_rate": 1e-4,
                "schedule": "one_cycle",
                "beta1": 0.9,
                "beta2": 0.999,
                "eps": 1e-6,
                "weight_decay": 0.0,
                "clip_norm": 0.0,
            },
            "train": {"seed": 0, "accumulation": 1},
            "eval": {"max_examples": 0, "batch_size": 0},
            "mesh": {"data": -1, "sequence": 1},
            "checkpoint": {"every_steps": 500},
            "log": {"every_steps": 50, "events": True},
        }
    )


def attention(argument: str) -> ConfigDict:
    """Reads `name[,option=value …]` into the attention section.

    Raises:
      ValueError: An unknown attention or option, with the nearest known ones.
    """
    name, *settings = argument.split(",")
    if name not in ATTENTIONS:
        raise ValueError(f"Unknown attention {name!r}{_nearest(name, ATTENTIONS)}")
    section = {"name": name, **ATTENTIONS[name]}
    for setting in settings:
        option, equals, value = setting.partition("=")
        if not equals or option not in ATTENTIONS[name]:
            raise ValueError(
                f"{name} attention has no option {option!r}{_nearest(option, ATTENTIONS[name])}"
            )
        try:
            section[option] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            section[option] = value
    return ConfigDict(section)


def _nearest(name: str, known: dict[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}."
