"""Records of a run: label, recipe and command; and the setting that it shares with other runs.

`config.json` has the sections of the config and these three texts, from the first second of the run.
"""

import functools
import logging
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

from nystromformer_jax.attention.options import is_default
from nystromformer_jax.support.plugins import short_name

RECORDED = ("label", "recipe", "command")
# Former names of recipes. Recorded runs keep them; commands may use them until the release after this one.
RENAMED = {"open": "mega", "open_small": "mega_small"}
# The option whose value follows the name of an attention in a label, as in nystrom-64.
SIZES: Mapping[str, str] = {
    "nystrom": "num_landmarks",
    "reformer": "num_hashes",
    "linformer": "projection_size",
    "performer": "num_features",
    "longformer": "window",
    "chunked": "chunk_len",
}
# Sections that do not change results, and such keys of other sections. The seed is not part of a setting.
NEUTRAL_SECTIONS = ("mesh", "checkpoint", "log")
NEUTRAL_KEYS = {
    "attention.implementation",
    "data.dir",
    "data.source",
    "data.test_file",
    "data.tokenizer",
    "data.train_file",
    "data.valid_file",
    "data.workers",
    "eval.batch_size",
    "init.checkpoint",  # its weights are identified by their hash
    "train.accumulation",  # depends on the device
    "train.cpu_accumulation",  # of version 0.2.0
    "train.remat",
    "train.seed",
}
# Keys that a label leaves out: the task has its own column, and a shorter run is marked as partial.
UNLABELED = {
    "data.task",
    "attention.name",
    "train.total_steps",
    "train.budget_steps",
    "optimizer.warmup_steps",
    "eval.every_steps",
}


def label_of(config: Mapping[str, Any], default: Mapping[str, Any]) -> str:
    """Returns the label of a run, such as "nystrom-64, pinv_iters=2", or "softmax from bert-base".

    Args:
      config: Sections of the run's config.
      default: The config without the run's changes; values that differ from it are part of the label.
    """
    attention, checkpoint = config["attention"], Path(config.get("init", {}).get("checkpoint", ""))
    size = SIZES.get(attention["name"], "")
    label = short_name(attention["name"])
    label += f"-{attention[size]}" if size in attention else ""
    # A run exports its model to the folder "model".
    origin = checkpoint.parent.name if checkpoint.name == "model" else checkpoint.name
    words = [" from ".join(filter(None, [label, origin]))]
    before, now = flat(default), flat(config)
    words += [
        f"{short_key(key, now)}={value}"
        for key, value in now.items()
        if key not in UNLABELED and key != f"attention.{size}" and before.get(key) != value
    ]
    return ", ".join(words)


def short_key(key: str, keys: Collection[str]) -> str:
    """Returns a dotted key of `keys` without its section, if that cannot be read as a key of another section.

    Options of the attention are always short; a label begins with the attention.
    """
    section, _, name = key.partition(".")
    others = {*keys, "train.seed"} - {key}
    is_shared = any(other.partition(".")[2] == name for other in others)
    return key if is_shared and section != "attention" else name


@functools.cache  # one warning per process
def renamed_recipe(recipe: str) -> str:
    """Returns the present name of a recipe in a command; logs a warning if the recipe has been renamed."""
    name = RENAMED.get(recipe, recipe)
    if name != recipe:
        logging.getLogger(__name__).warning(
            "recipe=%s is now recipe=%s; the next release will not accept the old name.",
            recipe,
            name,
        )
    return name


def recipe_words(recipe: str) -> str:
    """Returns a recorded recipe as in a command: "recipe=fast", or "quirks=mlpen"; empty for the paper's."""
    if recipe in ("", "paper"):
        return ""
    return recipe if "=" in recipe else f"recipe={recipe}"


def setting_of(config: Mapping[str, Any]) -> dict[str, Hashable]:
    """Returns the setting of a run; it is equal for runs that differ only in seed, paths or devices.

    Values that a run without the key was trained with are left out: an older run lacks the keys of newer
    options.
    """
    return {key: value for key, value in flat(config).items() if not is_default(key, value)}


def flat(config: Mapping[str, Any]) -> dict[str, Hashable]:
    """Returns the values of a config by dotted key, sorted, without those that cannot change results."""
    values = {
        f"{section}.{key}": _hashable(value)
        for section, own in config.items()
        if section not in (*RECORDED, *NEUTRAL_SECTIONS) and isinstance(own, Mapping)
        for key, value in own.items()
    }
    return {key: values[key] for key in sorted(values) if key not in NEUTRAL_KEYS}


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return tuple((key, _hashable(value[key])) for key in sorted(value))
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
