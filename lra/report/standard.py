"""Values that the config file of a task gives, which a report need not mention."""

import functools
import importlib
import itertools
import re
from collections.abc import Hashable, Mapping
from typing import Any

from reporting.runs import NEUTRAL_SECTIONS

Setting = Mapping[str, Hashable]

PRESET = "preset"  # key of a setting: the recipe and the quirks of its config argument
# The first is the paper's recipe.
PRESETS = tuple(
    ",".join(filter(None, pair))
    for pair in itertools.product(("", "recipe=fast"), ("", "quirks=mlpen", "quirks=google"))
)
# Keys that do not change a run's numbers, like all keys of NEUTRAL_SECTIONS.
NEUTRAL = {
    "data.dir",
    "data.source",
    "data.workers",
    "eval.batch_size",
    "train.remat",
    "train.seed",
}


def config_file(task: str) -> tuple[str, list[str]]:
    """Returns the name of a task's file in `configs/`, and the task's own options of its argument."""
    if not (pathfinder := re.fullmatch(r"pathfinder(\d+)(?:-(\w+))?", task)):
        return task.replace("-", "_"), []
    resolution, difficulty = pathfinder.groups()
    options = [f"resolution={resolution}"] if resolution not in ("32", "128") else []
    options += [f"difficulty={difficulty}"] if difficulty else []
    return "pathx" if resolution == "128" else "pathfinder", options


@functools.cache
def config_values(file: str, argument: str) -> Setting:
    """Returns the values of `configs/FILE.py:ARGUMENT` as a setting; empty if they cannot be loaded."""
    try:
        get_config = importlib.import_module(f"configs.{file}").get_config
        return flat(get_config(*[argument] * bool(argument)).to_dict())
    except Exception:  # a config file of the user's may raise anything
        return {}


def standard(task: str, attention: str, preset: str = "") -> Setting:
    """Returns the setting that a task's config file gives.

    It has no options for an attention that the file does not know. It is empty for a task without a config
    file in `configs/`, and for a preset that the file does not have.
    """
    file, options = config_file(task)
    for name in (attention, "softmax"):
        values = config_values(file, ",".join(filter(None, [name, *options, preset])))
        if values.get("data.task") == task:
            known = name == attention
            return {key: values[key] for key in values if known or not is_option(key)}
    return {}


def has_standard(setting: Setting) -> bool:
    """Returns whether the task of a setting has a config file in `configs/`."""
    return bool(standard(str(setting["data.task"]), str(setting["attention.name"])))


def usual_values(setting: Setting) -> Setting:
    """Returns the values of the config file for the task, attention and preset of a setting."""
    task, attention = str(setting["data.task"]), str(setting["attention.name"])
    return standard(task, attention, str(setting[PRESET]))


def flat(config: Mapping[str, Any]) -> dict[str, Hashable]:
    """Returns a config by dotted keys, without keys that do not change a run's numbers."""
    return {
        f"{section}.{key}": hashable(value)
        for section, values in config.items()
        if section not in NEUTRAL_SECTIONS
        for key, value in values.items()
        if f"{section}.{key}" not in NEUTRAL
    }


def preset_of(setting: Setting, config_argument: str = "") -> str:
    """Returns the recipe and the quirks of a run, such as "recipe=fast,quirks=mlpen".

    Args:
      setting: Values of the run's config.
      config_argument: The run's `--config`. Without it, as in older runs, the preset is the one that leaves
        the fewest values different; keys that the run does not have count as the paper's.
    """
    if config_argument:
        given = config_argument.partition(":")[2].split(",")
        return next(
            one for one in reversed(PRESETS) if set(filter(None, one.split(","))) <= {*given}
        )
    task, attention = str(setting["data.task"]), str(setting["attention.name"])
    values = {**standard(task, attention), **setting}

    def differing(preset: str) -> int:
        known = standard(task, attention, preset)
        return sum(key not in known or known[key] != value for key, value in values.items())

    return min(PRESETS, key=differing)  # the first of equals


def is_option(key: str) -> bool:
    """Returns whether a dotted key is an option of the attention."""
    return key.startswith("attention.") and key != "attention.name"


def hashable(value: Any) -> Hashable:
    """Returns a value of a config with tuples for lists and objects."""
    if isinstance(value, dict):
        return tuple((key, hashable(value[key])) for key in sorted(value))
    return tuple(map(hashable, value)) if isinstance(value, list) else value
