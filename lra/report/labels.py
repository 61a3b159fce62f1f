"""What to call a setting: its attention, and in words what sets it apart from others.

A setting is a config by dotted keys without what cannot change its numbers: seed, paths, processes,
devices, checkpoints and logs. What the task's own config file has goes without saying.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from lra.report.standard import Setting, flat, is_option, quirks_of, standard

# The option that stands behind the attention's name: nystrom-64.
SIZES: Mapping[str, str] = {
    "nystrom": "num_landmarks",
    "reformer": "num_hashes",
    "linformer": "projection_size",
    "performer": "num_features",
    "longformer": "window",
}
# These follow the budget, and are said where nothing else tells two settings apart.
SECONDARY = {"optimizer.warmup_steps", "eval.every_steps", "train.accumulation"}
NAMES = {"attention.name", "data.task", "data.sha256"}

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


def setting_of(config: Mapping[str, Any], task: str, data_sha256: str = "") -> dict[str, Hashable]:
    """The setting of a config; equal for runs that differ by their seed or by where they ran.

    A run that was written before a key was there has what the config file has now.
    """
    own = {**flat(config), "data.task": task, "data.sha256": data_sha256}
    return {**standard(task, str(own["attention.name"]), quirks_of(own) or "none"), **own}


def label_settings(
    settings: Sequence[Setting], weights: Sequence[int], budgets: Sequence[int]
) -> list[tuple[str, str]]:
    """Labels for each of several different settings.

    Args:
      settings: all that are shown together.
      weights: how many runs each has. What most runs have in common is not said either.
      budgets: the steps of a whole run of each.

    Returns:
      What names the attention, and what names the setting: no two of a task are alike.
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


def size_of(setting: Setting) -> str:
    """The dotted key of the option that stands behind the attention's name; empty without one."""
    option = SIZES.get(str(setting["attention.name"]), "")
    return f"attention.{option}" if f"attention.{option}" in setting else ""


def differences(setting: Setting) -> dict[str, Hashable]:
    """What a setting has that neither its config file nor its quirks have, sorted by key."""
    usual = _usual(setting)
    return {
        key: value
        for key, value in sorted(setting.items())
        if key not in NAMES and value != usual.get(key, _UNSET)
    }


def unusual(setting: Setting) -> dict[str, Hashable]:
    """The differences that are worth a word; of steps, only more of them.

    Fewer steps make a run partial, which is said elsewhere.
    """
    found = {key: value for key, value in differences(setting).items() if key not in SECONDARY}
    steps, budget = found.get("train.total_steps"), _usual(setting).get("train.total_steps")
    if isinstance(steps, int) and (not isinstance(budget, int) or steps < budget):
        del found["train.total_steps"]
    return found


def _usual(setting: Setting) -> Setting:
    task, attention = str(setting["data.task"]), str(setting["attention.name"])
    return standard(task, attention, quirks_of(setting) or "none")


def _attention_words(
    setting: Setting, settings: Sequence[Setting], weights: Sequence[int]
) -> list[str]:
    """The attention, its unusual options, and what is unusual besides."""
    name, size, quirks = str(setting["attention.name"]), size_of(setting), quirks_of(setting)
    peers = [number for number, s in enumerate(settings) if s["attention.name"] == name]
    words = [f"{name}-{setting[size]}" if size else name]
    for key, value in unusual(setting).items():
        known = not is_option(key) or key in _usual(setting)
        values = [settings[number].get(key, _UNSET) for number in peers]
        if key != size and (known or value != _most(values, [weights[number] for number in peers])):
            words.append(_word(key, value))
    return [*words, f"quirks={quirks}"] if quirks else words


def _most(values: Sequence[object], weights: Sequence[int]) -> object:
    """The value that more runs have than any other; nothing where two have as many."""
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
