"""What every LRA config starts from, and what stands behind its colon: `:nystrom,num_landmarks=128`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import official
from configs.argument import parse, value_of
from harness.spelling import nearest

# Options of each attention. Nyström, softmax, Reformer's and Linformer's are those of the authors' LRA code
# (lra_config.py). It asks for Performer's relu kernel by an argument that performer-pytorch, as far as we
# read it, does not use, so softmax's here. Its Longformer has a window of 129; the paper's Table 1 has 257.
ATTENTIONS: dict[str, dict[str, Any]] = {
    "nystrom": {
        "num_landmarks": 64,
        "conv_kernel_size": 35,
        "pinv_iters": 6,
        "pinv_start": "exact",
        "landmark_layout": "real",
    },
    "softmax": {"conv_kernel_size": 0, "dropout_rate": 0.1},
    "reformer": {"num_hashes": 2, "chunk_len": 64, "num_buckets": None, "redraw": True},
    "linformer": {"projection_size": 256},
    "performer": {"num_features": 256, "kernel": "softmax", "orthogonal": True, "redraw": False},
    "longformer": {"window": 257, "num_global": 1},
    "linear": {},
}
DEFAULT = "nystrom"  # where options stand alone

# Where other codes differ from ours, all at once, so that their numbers can be looked for by their means.
MLPEN: dict[str, Any] = {
    # mlpen/Nystromformer, LRA/code at 5689313: attention_nystrom.py L38-39 and L56, model.py L99 with
    # model_wrapper.py L11, run_tasks.py L66 (OneCycleLR cycles the momentum by default).
    "attention.landmark_layout": "mlpen",
    "attention.pinv_start": "batch_max",
    # dataset.py: the mask is `input_ids != 0`, so black pixels are padding, too.
    "data.zero_is_padding": True,
    "model.pooling": "padded_mean",
    "optimizer.cycle_beta1": True,
}

QUIRKS: dict[str, Callable[[str], Mapping[str, Any]]] = {
    "none": lambda task: {},
    "mlpen": lambda task: MLPEN,
    "google": official.values,
}


def base(argument: str) -> ConfigDict:
    """The sections every task shares: the authors' model sizes, optimizer and evaluation.

    Args:
      argument: `ATTENTION[,option=value …]`, options of the attention or `quirks=mlpen|google`.

    Raises:
      ValueError: An unknown attention, option or quirk, with the nearest known ones; an option twice.
    """
    attention, _ = _parse(argument)
    return ConfigDict(
        {
            "data": {
                "source": "auto",
                "dir": "",
                "examples": 0,
                "padded_len": 0,
                "zero_is_padding": False,
                "seed": 0,
                "workers": 0,
            },
            "model": {
                "num_layers": 2,
                "embed_dim": 64,
                "num_heads": 2,
                "head_dim": 32,
                "mlp_dim": 128,
                "dropout_rate": 0.1,
                "positions": "learned",
                "pooling": "mean",
                "pair_features": "products",
                "activation": "gelu",
                "layer_norm_epsilon": 1e-5,
                "attention_bias": True,
                "initialization": "lecun",
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
                "cycle_beta1": False,
            },
            "attention": attention,
            "train": {"seed": 0, "accumulation": 1, "remat": False, "budget_steps": 0},
            "eval": {"max_examples": 0, "batch_size": 0},
            "mesh": {"data": -1, "sequence": 1, "shard_params": False},
            "checkpoint": {"every_steps": 500},
            "log": {"every_steps": 50, "events": True},
        }
    )


def finish(config: ConfigDict, argument: str) -> ConfigDict:
    """Sets what `quirks=…` asks for, over the task's own values.

    Raises:
      ValueError: Quirks that do not know the task.
    """
    _, quirks = _parse(argument)
    for name, value in QUIRKS[quirks](config.data.task).items():
        section, key = name.split(".")
        if section == "attention" and key not in config.attention:
            continue  # softmax attention has no landmarks to lay out
        config[section][key] = value
    return config


def take(
    argument: str, options: Mapping[str, Sequence[int | str]]
) -> tuple[str, dict[str, int | str]]:
    """Takes a task's own options out of `ATTENTION[,option=value …]`.

    Args:
      argument: what stands behind the colon.
      options: the values each option may have, the default first.

    Returns:
      The rest of the argument, for `base`, and every option's value.

    Raises:
      ValueError: A value that the option may not have; an option twice.
    """
    name, rest = parse(argument, default=DEFAULT)
    chosen = {option: values[0] for option, values in options.items()}
    for option in [option for option in options if option in rest]:
        value, values = rest.pop(option), {str(known): known for known in options[option]}
        if value not in values:
            raise ValueError(f"{option} cannot be {value!r}; known: {', '.join(values)}.")
        chosen[option] = values[value]
    return ",".join([name, *(f"{option}={value}" for option, value in rest.items())]), chosen


def _parse(argument: str) -> tuple[dict[str, Any], str]:
    """The attention section, and the name of the quirks."""
    name, options = parse(argument, default=DEFAULT)
    if name not in ATTENTIONS:
        raise ValueError(f"Unknown attention {name!r}{nearest(name, ATTENTIONS)}")
    quirks = options.pop("quirks", "none")
    if quirks not in QUIRKS:
        raise ValueError(f"Unknown quirks {quirks!r}{nearest(quirks, QUIRKS)}")
    for option in options:
        if option not in ATTENTIONS[name]:
            known = [*ATTENTIONS[name], "quirks"]
            raise ValueError(f"{name} attention has no option {option!r}{nearest(option, known)}")
    values = {option: value_of(value) for option, value in options.items()}
    return {"name": name, **ATTENTIONS[name], **values}, quirks
