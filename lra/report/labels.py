"""Labels of settings: the attention, and what sets a setting apart from others.

A setting is a config by dotted keys, without what cannot change its numbers: seed, paths, processes, devices,
checkpoints and logs. Values that the task's own config file gives are not mentioned.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from lra.report.standard import (
    PRESET,
    Setting,
    flat,
    has_standard,
    is_option,
    preset_of,
    standard,
    usual_values,
)

# The option that follows the attention's name in a label: nystrom-64.
SIZES: Mapping[str, str] = {
    "nystrom": "num_landmarks",
    "reformer": "num_hashes",
    "linformer": "projection_size",
    "performer": "num_features",
    "longformer": "window",
}
# These follow the budget, and are mentioned only where nothing else tells two settings apart.
SECONDARY = {"optimizer.warmup_steps", "eval.every_steps", "train.accumulation"}
NAMES = {"attention.name", "data.task", "data.sha256", PRESET}
RECIPES: Mapping[str, str] = {"": "paper", "recipe=fast": "fast"}  # tracks by preset

NOUNS: Mapping[str, str] = {
    "attention.pinv_iters": "iterations",
    "attention.pinv_start": "start",
    "attention.landmark_layout": "layout",
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
COUNTED = {"attention.pinv_iters", "model.num_layers", "model.num_heads", "train.total_steps"}

_UNSET = object()


def setting_of(
    config: Mapping[str, Any], task: str, data_sha256: str = "", config_argument: str = ""
) -> dict[str, Hashable]:
    """Returns the setting of a config; equal for runs that differ by their seed or by where they ran.

    Keys that an older run does not have are filled in from the config file. See `preset_of` for
    `config_argument`.
    """
    own = {**flat(config), "data.task": task, "data.sha256": data_sha256}
    preset = preset_of(own, config_argument)
    return {**standard(task, str(own["attention.name"]), preset), **own, PRESET: preset}


def label_settings(
    settings: Sequence[Setting], weights: Sequence[int], budgets: Sequence[int]
) -> list[tuple[str, str]]:
    """Returns the labels of the attention and of the setting, for each of several different settings.

    Args:
      settings: All settings of a report. No two of a task get the same label.
      weights: Number of runs of each. Values that most runs share are not mentioned.
      budgets: Steps of a whole run of each.
    """
    words = [_attention_words(setting, settings, weights) for setting in settings]
    attentions = [", ".join(said) for said in words]
    alike: dict[tuple[Hashable, ...], list[int]] = {}
    for number, setting in enumerate(settings):
        alike.setdefault((setting["data.task"], attentions[number]), []).append(number)
    for members in alike.values():
        said: set[str] = set()
        keys = {key for number in members for key in settings[number]}
        differing = sorted(
            key for key in keys if len({settings[i].get(key, _UNSET) for i in members}) > 1
        )
        for key in sorted(differing, key=lambda key: key in SECONDARY):
            unique = {tuple(settings[i].get(name, _UNSET) for name in said) for i in members}
            if key in SECONDARY and len(unique) == len(members):
                break
            said.add(key)
            values = [settings[number].get(key, _UNSET) for number in members]
            usual = _most(values, [weights[number] for number in members])
            for number, value in zip(members, values, strict=True):
                plain = budgets[number] if key == "train.total_steps" else usual
                if value != plain:
                    words[number].append(_word(key, value))
    return list(zip(attentions, (", ".join(said) for said in words), strict=True))


def differences(setting: Setting) -> dict[str, Hashable]:
    """Returns the values that differ from those of the config file with the preset, sorted by key."""
    usual = usual_values(setting)
    return {
        key: value
        for key, value in sorted(setting.items())
        if key not in NAMES and value != usual.get(key, _UNSET)
    }


def unusual(setting: Setting) -> dict[str, Hashable]:
    """Returns the differences that a label mentions; of steps, only more of them.

    Fewer steps make a run partial, which is shown elsewhere. Empty for a task without a known config file,
    whose labels mention what differs among the settings.
    """
    if not has_standard(setting):
        return {}
    found = {key: value for key, value in differences(setting).items() if key not in SECONDARY}
    steps, budget = found.get("train.total_steps"), usual_values(setting).get("train.total_steps")
    if isinstance(steps, int) and (not isinstance(budget, int) or steps < budget):
        del found["train.total_steps"]
    return found


def track_of(setting: Setting) -> str:
    """Returns "paper" or "fast" if at most options of the attention differ from that recipe, else "other".

    Values that `unusual` does not contain may differ, too.
    """
    plain = has_standard(setting) and all(map(is_option, unusual(setting)))
    return RECIPES.get(str(setting[PRESET]), "other") if plain else "other"


def _attention_words(
    setting: Setting, settings: Sequence[Setting], weights: Sequence[int]
) -> list[str]:
    """Returns the attention with its size, what is unusual, and the preset."""
    name = str(setting["attention.name"])
    size = f"attention.{SIZES.get(name)}"
    peers = [number for number, s in enumerate(settings) if s["attention.name"] == name]
    words = [f"{name}-{setting[size]}" if size in setting else name]
    for key, value in unusual(setting).items():
        known = not is_option(key) or key in usual_values(setting)
        values = [settings[number].get(key, _UNSET) for number in peers]
        if key != size and (known or value != _most(values, [weights[number] for number in peers])):
            words.append(_word(key, value))
    return [*words, *filter(None, str(setting[PRESET]).split(","))]


def _most(values: Sequence[object], weights: Sequence[int]) -> object:
    """Returns the value that most runs have; an object equal to no value if two values tie."""
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
    if value is False or value == 0:
        return f"no {noun}"
    if key in COUNTED:
        return f"{value:,} {noun}"
    return f"{noun} {str(value)[:8] if key == 'data.sha256' else value}".strip()
