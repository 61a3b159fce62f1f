"""Settings of runs and their labels: the attention, and the values that differ from other settings.

A setting is a config as a flat dict with dotted keys, without the seed and without keys that cannot change
results: paths, processes, devices, checkpoints and logs. Labels omit the values of the task's config file.
"""

import functools
import importlib
import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from lra.data import mqar
from nystromformer_jax.plugins import is_plugin, short_name
from nystromformer_jax.spelling import split_commas
from reporting.runs import NEUTRAL_KEYS, NEUTRAL_SECTIONS

Setting = Mapping[str, Hashable]

PRESET = "preset"  # key of a setting: the recipe or the quirks of the config argument
RECIPES = ("paper", "fast", "open", "open_small")  # values of `recipe=`; the first is the default
_BY_PRESET = {"" if recipe == "paper" else f"recipe={recipe}": recipe for recipe in RECIPES}
PRESETS = (*_BY_PRESET, "quirks=mlpen", "quirks=google")  # the first is the paper's recipe

# Options whose value follows the name of the attention in a label: nystrom-64.
SIZES: Mapping[str, str] = {
    "nystrom": "num_landmarks",
    "reformer": "num_hashes",
    "linformer": "projection_size",
    "performer": "num_features",
    "longformer": "window",
    "chunked": "chunk_len",
}
# Keys that labels mention only if two settings differ in nothing else. The warm-up is such a key for shorter
# runs only; that of a whole run is a difference from the recipe.
SECONDARY = {"optimizer.warmup_steps", "eval.every_steps"}
# Keys that select the config file or the data, so they are never differences from it.
NEVER_DIFFERENCES = {"attention.name", "data.task", "data.sha256", PRESET}

NOUNS: Mapping[str, str] = {
    "attention.pinv_iters": "iterations",
    "attention.pinv_start": "start",
    "attention.landmark_layout": "layout",
    "attention.landmark_selection": "landmarks",
    "attention.conv_kernel_size": "convolution",
    "attention.dropout_rate": "attention dropout",
    "data.seed": "data seed",
    "data.sha256": "data",
    "model.num_layers": "layers",
    "model.num_heads": "heads",
    "model.dropout_rate": "dropout",
    "model.dtype": "",
    "optimizer.learning_rate": "rate",
    "optimizer.warmup_steps": "warm-up",
    "train.total_steps": "steps",
    "train.budget_steps": "budget of steps",
    "train.batch_size": "batch",
    "eval.every_steps": "evaluation every",
}
ZERO: Mapping[str, str] = {  # what 0 means, if it is not the absence
    "data.examples": "all examples",
    "data.padded_len": "padded to max len",
    "eval.max_examples": "evaluated on all",
    "train.budget_steps": "budget of the task",
}
COUNTED = {"attention.pinv_iters", "model.num_layers", "model.num_heads", "train.total_steps"}

_UNSET = object()


def setting_of(
    config: Mapping[str, Any], task: str, data_sha256: str = "", config_argument: str = ""
) -> dict[str, Hashable]:
    """Returns the setting of a config; equal for runs that differ only in seed, paths or devices.

    Keys that an older run lacks have the value of the paper's recipe. See `preset_of` for `config_argument`.
    """
    own = {**flat(config), "data.task": task, "data.sha256": data_sha256}
    preset = preset_of(own, config_argument)
    return {**default_setting(task, str(own["attention.name"])), **own, PRESET: preset}


def label_settings(
    settings: Sequence[Setting], weights: Sequence[int], budgets: Sequence[int]
) -> list[tuple[str, str]]:
    """Returns two labels for each of several distinct settings: of the attention and of the setting.

    Labels of settings are unique within a task. Values that most runs share are omitted: `weights` are the
    numbers of runs per setting, and `budgets` the numbers of steps of a complete run.
    """
    words = [_attention_words(setting, settings, weights) for setting in settings]
    attentions = [", ".join(parts) for parts in words]
    by_attention: dict[tuple[Hashable, ...], list[int]] = {}
    for number, setting in enumerate(settings):
        by_attention.setdefault((setting["data.task"], attentions[number]), []).append(number)
    for members in by_attention.values():
        for key in _mentioned([settings[number] for number in members]):
            values = [settings[number].get(key, _UNSET) for number in members]
            most_common = _most(values, [weights[number] for number in members])
            for number, value in zip(members, values, strict=True):
                default = budgets[number] if key == "train.total_steps" else most_common
                if value != default:
                    words[number].append(_word(key, value))
    return list(zip(attentions, (", ".join(parts) for parts in words), strict=True))


def _mentioned(settings: Sequence[Setting]) -> list[str]:
    """Returns the keys that differ; those of `SECONDARY` only until the others tell all settings apart."""
    keys = sorted({key for setting in settings for key in setting})
    differing = [key for key in keys if len({s.get(key, _UNSET) for s in settings}) > 1]
    mentioned = [key for key in differing if key not in SECONDARY]
    for key in (key for key in differing if key in SECONDARY):
        unique = {tuple(s.get(name, _UNSET) for name in mentioned) for s in settings}
        if len(unique) < len(settings):
            mentioned.append(key)
    return mentioned


def differences(setting: Setting) -> dict[str, Hashable]:
    """Returns the values that differ from the config file with the same preset, sorted by key."""
    defaults = defaults_of(setting)
    return {
        key: value
        for key, value in sorted(setting.items())
        if key not in NEVER_DIFFERENCES and value != defaults.get(key, _UNSET)
    }


def label_differences(setting: Setting) -> dict[str, Hashable]:
    """Returns the differences from the config file that a label mentions.

    Fewer steps and their warm-up are omitted, because they make a run partial, which is shown elsewhere.
    Empty for a task without a known config file; labels then mention values that differ among the settings.
    """
    if not has_config_file(setting):
        return {}
    found = differences(setting)
    steps, budget = found.get("train.total_steps"), defaults_of(setting).get("train.total_steps")
    is_shorter = isinstance(steps, int) and (not isinstance(budget, int) or steps < budget)
    omitted = {"eval.every_steps"}
    if is_shorter:
        omitted |= {"train.total_steps", "optimizer.warmup_steps"}
    return {key: value for key, value in found.items() if key not in omitted}


def track_of(setting: Setting) -> str:
    """Returns the name of the recipe if only options of the attention differ from it, else "other".

    Values that `label_differences` omits may also differ.
    """
    plain = has_config_file(setting) and all(map(is_option, label_differences(setting)))
    return _BY_PRESET.get(str(setting[PRESET]), "other") if plain else "other"


def _attention_words(
    setting: Setting, settings: Sequence[Setting], weights: Sequence[int]
) -> list[str]:
    """Returns the words of a label: attention and size, differences from the config file, preset."""
    name = str(setting["attention.name"])
    size = f"attention.{SIZES.get(name)}"
    peers = [number for number, s in enumerate(settings) if s["attention.name"] == name]
    names = {str(s["attention.name"]) for s in settings}
    is_unique = sum(short_name(other) == short_name(name) for other in names) == 1
    label = short_name(name) if is_unique else name
    words = [f"{label}-{setting[size]}" if size in setting else label]
    for key, value in label_differences(setting).items():
        known = not is_option(key) or key in defaults_of(setting)
        values = [settings[number].get(key, _UNSET) for number in peers]
        if key != size and (known or value != _most(values, [weights[number] for number in peers])):
            words.append(_word(key, value))
    return [*words, str(setting[PRESET])] if setting[PRESET] else words


def _most(values: Sequence[object], weights: Sequence[int]) -> object:
    """Returns the value of most runs; if two values tie, an object that equals no value."""
    counts: Counter[object] = Counter()
    for value, weight in zip(values, weights, strict=True):
        counts[value] += weight
    first, *others = counts.most_common(2)
    return object() if others and others[0][1] == first[1] else first[0]


def _word(key: str, value: object) -> str:
    noun = NOUNS.get(key, key.rpartition(".")[2].replace("_", " "))
    if value is _UNSET or value is None or value == "":
        return f"{noun} unset"
    if value is True:
        return noun
    if value is False or (value == 0 and not key.endswith("seed")):
        return ZERO.get(key, f"no {noun}")
    if key in COUNTED and isinstance(value, int):  # an option of an own attention may have any type
        return f"{value:,} {noun if value != 1 else noun.removesuffix('s')}"
    return f"{noun} {str(value)[:8] if key == 'data.sha256' else value}".strip()


# --- Values of config files ----------------------------------------------------------------------


def config_file(task: str) -> tuple[str, list[str]]:
    """Returns the name of the config file of a task, and the options of its argument for this task."""
    if size := mqar.size_of(task):
        return "mqar", [f"length={size[0]}", f"pairs={size[1]}"]
    if not (pathfinder := re.fullmatch(r"pathfinder(\d+)(?:-(\w+))?", task)):
        return task.replace("-", "_"), []
    resolution, difficulty = pathfinder.groups()
    options = [f"resolution={resolution}"] if resolution not in ("32", "128") else []
    options += [f"difficulty={difficulty}"] if difficulty else []
    return "pathx" if resolution == "128" else "pathfinder", options


@functools.cache
def config_values(file: str, argument: str) -> Setting:
    """Returns the values of `configs/FILE.py:ARGUMENT` as a setting; empty if they cannot be loaded.

    They are also empty for an attention of another package, whose module is not imported.
    """
    if is_plugin(argument):
        return {}
    try:
        get_config = importlib.import_module(f"configs.{file}").get_config
        config = get_config(argument) if argument else get_config()
        return flat(config.to_dict())
    except Exception:  # a user's config file may raise anything
        return {}


def default_setting(task: str, attention: str, preset: str = "") -> Setting:
    """Returns the setting of a task's config file for an attention and a preset.

    For an attention that the file does not support, the setting has no options of the attention. It is
    empty for a task without a file in `configs/`, and for a preset that the file does not support.
    """
    file, options = config_file(task)
    for name in (attention, "softmax"):
        values = config_values(file, ",".join(filter(None, [name, *options, preset])))
        if values.get("data.task") == task:
            known = name == attention
            return {key: values[key] for key in values if known or not is_option(key)}
    return {}


def has_config_file(setting: Setting) -> bool:
    """Returns True if the task of a setting has a config file in `configs/`."""
    return bool(default_setting(str(setting["data.task"]), str(setting["attention.name"])))


def defaults_of(setting: Setting) -> Setting:
    """Returns the setting of the config file with the same task, attention and preset."""
    task, attention = str(setting["data.task"]), str(setting["attention.name"])
    return default_setting(task, attention, str(setting[PRESET]))


def flat(config: Mapping[str, Any]) -> dict[str, Hashable]:
    """Converts a config to a flat dict with dotted keys, without keys that cannot change results."""
    values = {
        f"{section}.{key}": value
        for section, values in config.items()
        for key, value in values.items()
    }
    return affecting_results(values)


def affecting_results(values: Mapping[str, Any]) -> dict[str, Hashable]:
    """Returns the values by dotted key, sorted, without keys that cannot change results."""
    return {
        key: hashable(value)
        for key, value in sorted(values.items())
        if key.partition(".")[0] not in NEUTRAL_SECTIONS and key not in NEUTRAL_KEYS
    }


def preset_of(setting: Setting, config_argument: str = "") -> str:
    """Returns the recipe or the quirks of a run, such as "recipe=fast"; empty for the paper's recipe.

    For older runs, whose `--config` is unknown, it is the preset from which the fewest values differ; keys
    that the run lacks have the value of the paper's recipe.
    """
    if config_argument:
        given = split_commas(config_argument.partition(":")[2])
        return next((preset for preset in PRESETS[1:] if preset in given), PRESETS[0])
    task, attention = str(setting["data.task"]), str(setting["attention.name"])
    values = {**default_setting(task, attention), **setting}

    def differing(preset: str) -> int:
        known = default_setting(task, attention, preset)
        return sum(key not in known or known[key] != value for key, value in values.items())

    return min(PRESETS, key=differing)  # the first in case of a tie


def is_option(key: str) -> bool:
    """Returns True if a dotted key is an option of the attention."""
    return key.startswith("attention.") and key != "attention.name"


def hashable(value: Any) -> Hashable:
    """Converts a config value to a hashable one: lists and dicts become tuples."""
    if isinstance(value, dict):
        return tuple((key, hashable(value[key])) for key in sorted(value))
    return tuple(map(hashable, value)) if isinstance(value, list) else value
