"""What goes without saying of a run: what its task's own config file has."""

import functools
import importlib
import re
from collections.abc import Hashable, Mapping
from typing import Any

Setting = Mapping[str, Hashable]

CONFIG_FILES = {"listops-short": "listops_short", "pathfinder128": "pathx"}
QUIRKS = ("none", "mlpen", "google")

NO_PART = {
    "data.dir",
    "data.source",
    "data.workers",
    "eval.batch_size",
    "train.remat",
    "train.seed",
}
NO_PART_SECTIONS = {"mesh", "checkpoint", "log"}


def config_file(task: str) -> tuple[str, list[str]]:
    """The config file of a task under `configs/`, and what must stand behind the attention's name."""
    file, argument = CONFIG_FILES.get(task, task), []
    if pathfinder := re.fullmatch(r"pathfinder(\d+)(?:-(\w+))?", task):
        resolution, difficulty = pathfinder.groups()
        file = CONFIG_FILES.get(f"pathfinder{resolution}", "pathfinder")
        if file == "pathfinder" and resolution != "32":
            argument.append(f"resolution={resolution}")
        if difficulty:
            argument.append(f"difficulty={difficulty}")
    return file, argument


@functools.cache
def standard(task: str, attention: str, quirks: str = "none") -> Setting:
    """The setting that the config file of a task gives; without options for an attention it knows not.

    Config files are loaded by their name, as `run_lra.py` loads them. Empty for a task without one.
    """
    file, argument = config_file(task)
    try:
        get_config = importlib.import_module(f"configs.{file}").get_config
    except ModuleNotFoundError:
        return {}
    try:
        config = get_config(",".join([attention, *argument, f"quirks={quirks}"]))
    except ValueError:
        if attention == "softmax":
            return {}
        known = standard(task, "softmax", quirks)
        return {key: value for key, value in known.items() if not is_option(key)}
    return flat(config.to_dict())


def flat(config: Mapping[str, Any]) -> dict[str, Hashable]:
    """A config by dotted keys, without what cannot change a run's numbers."""
    return {
        f"{section}.{key}": hashable(value)
        for section, values in config.items()
        if section not in NO_PART_SECTIONS
        for key, value in values.items()
        if f"{section}.{key}" not in NO_PART
    }


def quirks_of(setting: Setting) -> str:
    """The quirks by which fewest values of a setting are to be explained otherwise; "" for none."""
    task, attention = str(setting["data.task"]), str(setting["attention.name"])

    def unexplained(quirks: str) -> int:
        known = standard(task, attention, quirks)
        return sum(setting[key] != value for key, value in known.items() if key in setting)

    found = min(QUIRKS, key=unexplained)  # the first of equals
    return "" if found == "none" else found


def is_option(key: str) -> bool:
    """Whether a dotted key is an option of the attention."""
    return key.startswith("attention.") and key != "attention.name"


def hashable(value: Any) -> Hashable:
    """Lists and objects of a config as tuples."""
    if isinstance(value, dict):
        return tuple((key, hashable(value[key])) for key in sorted(value))
    return tuple(map(hashable, value)) if isinstance(value, list) else value
